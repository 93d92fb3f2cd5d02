// A table, flat or as a tree: sorted, searched and folded. Of many rows only those in view are in
// the page; few are there all at once, so that the browser's own search finds them.

const ROW = 26;
const ALL_AT_ONCE = 300;
const PRINTED = 2000;
const PAPER = 90; // how many digits are next to each other on it
const sorts = new Map(); // by label: a table that is drawn anew for another mode stays sorted

class Grid {
  #folded = new Set();
  #foldedInSearch = new Set();
  #query = "";
  #shown = [];
  #active = null;

  constructor(host, { label, columns, rows, words, tree = false, sort = null, folded = [], found }) {
    const told = columns.filter(
      (each, i) => i === 0 || tree || rows.some((row) => !missing(each.value(row)) && each.value(row) !== each.usual),
    );
    Object.assign(this, { label, columns: told, rows, words, tree, found });
    this.sort = sorts.get(label) ?? sort;
    for (const row of folded) this.#folded.add(row);
    this.ruler = element("span", { class: "ruler", "aria-hidden": "true" });
    this.head = element("div", { role: "row", class: "row head", "aria-rowindex": 1 });
    this.body = element("div", { class: "body", role: "rowgroup" });
    this.box = element(
      "div",
      {
        class: "grid",
        role: tree ? "treegrid" : "grid",
        "aria-label": label,
        tabindex: 0,
        onkeydown: (event) => this.#key(event),
        onscroll: () => this.#draw(),
        onclick: (event) => this.#click(event),
      },
      element("div", { role: "rowgroup", class: "top" }, this.head),
      this.body,
      this.ruler,
    );
    this.details = element("div", { class: "details" }, "Choose a row to see all of it.");
    host.append(this.box, this.details);
    new ResizeObserver(() => this.#fit()).observe(this.box);
    this.#fit();
    this.#lay();
  }

  search(query) {
    this.#query = query;
    this.#foldedInSearch.clear();
    this.box.scrollTop = 0;
    this.#lay();
  }

  foldAll(folded) {
    const each = (rows) =>
      rows.forEach((row) => {
        if (row.children.length) this.#fold(row, folded && row.parent !== null);
        each(row.children);
      });
    each(this.rows);
    this.#lay();
  }

  print(on) {
    this.printing = on;
    this.#fit();
  }

  get #closed() {
    return this.#query ? this.#foldedInSearch : this.#folded;
  }

  #fold(row, folded) {
    if (folded) this.#closed.add(row);
    else this.#closed.delete(row);
  }

  /** Settle which rows there are, in which order. */
  #lay() {
    const kept = this.#query ? this.#matching() : null;
    this.#shown = [];
    const add = (rows, level) => {
      const ordered = inSortOrder(kept ? rows.filter((row) => kept.has(row)) : rows, this.columns, this.sort);
      ordered.forEach((row, i) => {
        this.#shown.push({ row, level, place: i + 1, of: ordered.length });
        if (this.tree && !this.#closed.has(row)) add(row.children, level + 1);
      });
    };
    add(this.rows, 1);
    this.box.setAttribute("aria-rowcount", this.#shown.length + 1);
    if (!this.#shown.some(({ row }) => row === this.#active)) this.#active = null;
    this.#drawHead();
    this.#draw();
  }

  #matching() {
    const kept = new Set();
    let count = 0;
    const look = (rows) =>
      rows.forEach((row) => {
        row.haystack ??= this.words(row).join("\n").toLowerCase();
        if (row.haystack.includes(this.#query)) {
          count += 1;
          for (let each = row; each && !kept.has(each); each = this.tree ? each.parent : null) kept.add(each);
        }
        if (this.tree) look(row.children);
      });
    look(this.rows);
    this.found(count);
    return kept;
  }

  #sortBy({ label, number }) {
    const now = this.sort?.label === label ? this.sort : null;
    if (!now) this.sort = { label, down: number };
    else this.sort = now.down === number ? { label, down: !number } : null; // the third time: as it came
    sorts.set(this.label, this.sort);
    this.box.scrollTop = 0;
    this.#lay();
    [...this.head.querySelectorAll("button")].find((each) => each.dataset.label === label)?.focus();
  }

  #fit() {
    const room = this.printing ? PAPER : this.box.clientWidth / this.ruler.getBoundingClientRect().width;
    this.fitting = fittingColumns(this.columns, room);
    const growing = this.fitting.find(({ grow }) => grow) ?? this.fitting[0];
    const spare = Math.max(0, room - widthOf(this.fitting) - 0.1);
    const tracks = this.fitting.map((each) => `${each.width + (each === growing ? spare : 0)}ch`);
    this.box.style.setProperty("--columns", tracks.join(" "));
    this.#drawHead();
    this.#draw();
  }

  #drawHead() {
    this.head.replaceChildren(
      ...this.fitting.map((each) => {
        const sorted = this.sort?.label === each.label ? (this.sort.down ? "descending" : "ascending") : "none";
        return element(
          "div",
          { role: "columnheader", "aria-sort": sorted, class: each.number && !each.bar ? "number" : "" },
          element(
            "button",
            { type: "button", title: each.hint, "data-label": each.label, onclick: () => this.#sortBy(each) },
            each.label,
            element("span", { "aria-hidden": "true" }, { ascending: " ▲", descending: " ▼", none: "" }[sorted]),
          ),
        );
      }),
    );
  }

  #draw() {
    const count = this.#shown.length;
    const height = this.box.clientHeight || 600;
    const all = count <= ALL_AT_ONCE;
    const first = all || this.printing ? 0 : Math.max(0, Math.floor(this.box.scrollTop / ROW) - 10);
    const last = Math.min(count, all ? count : this.printing ? PRINTED : first + Math.ceil(height / ROW) + 20);
    this.body.style.height = `${(this.printing ? last : count) * ROW}px`;
    this.body.replaceChildren(...this.#shown.slice(first, last).map((each, i) => this.#row(each, first + i)));
    this.#mark();
  }

  #row({ row, level, place, of }, index) {
    const inTree = this.tree
      ? {
          "aria-level": level,
          "aria-posinset": place,
          "aria-setsize": of,
          "aria-expanded": row.children.length ? (!this.#closed.has(row) && "true") || "false" : null,
        }
      : {};
    const cells = this.fitting.map((each, i) => this.#cell(each, row, i === 0 ? level : 0));
    return element(
      "div",
      {
        role: "row",
        class: `row ${row.kind ?? ""}`,
        id: `row-${index}`,
        "data-index": index,
        "aria-rowindex": index + 2,
        style: `top: ${index * ROW}px`,
        ...inTree,
      },
      ...cells,
    );
  }

  #cell({ value, format, number, bar, title, path }, row, level) {
    const known = value(row);
    if (bar) return element("div", { role: "gridcell", class: "bars", title: bar(row).title }, ...bar(row).parts);
    const hint = title?.(row) ?? format.exact(known);
    if (!level)
      return element("div", { role: "gridcell", class: number ? "number" : "", title: hint }, format.text(known));
    const fold = row.children?.length && this.tree ? (this.#closed.has(row) ? "▸" : "▾") : "";
    return element(
      "div",
      {
        role: "rowheader",
        class: path ? "name path" : "name",
        title: hint,
        style: `padding-left: ${(level - 1) * 1.1 + 0.3}em`,
      },
      ...(this.tree ? [element("span", { class: "fold", "aria-hidden": "true" }, fold)] : []),
      element("bdi", {}, ...this.#marked(format.text(known))),
    );
  }

  #marked(text) {
    const at = this.#query ? text.toLowerCase().indexOf(this.#query) : -1;
    if (at < 0) return [text];
    const end = at + this.#query.length;
    return [text.slice(0, at), element("mark", {}, text.slice(at, end)), text.slice(end)];
  }

  /** Show which row is the active one, here and to a screen reader. */
  #mark() {
    const index = this.#shown.findIndex(({ row }) => row === this.#active);
    for (const each of this.body.children) {
      each.classList.toggle("active", Number(each.dataset.index) === index);
      each.setAttribute("aria-selected", Number(each.dataset.index) === index);
    }
    const drawn = index >= 0 && this.body.querySelector(`#row-${index}`);
    if (drawn) this.box.setAttribute("aria-activedescendant", drawn.id);
    else this.box.removeAttribute("aria-activedescendant");
  }

  #choose(index) {
    const chosen = this.#shown[Math.min(Math.max(index, 0), this.#shown.length - 1)];
    if (!chosen) return;
    this.#active = chosen.row;
    const top = this.#shown.indexOf(chosen) * ROW;
    const room = this.box.clientHeight - this.head.offsetHeight - ROW;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (top > this.box.scrollTop + room) this.box.scrollTop = top - room;
    this.#draw();
    const known = this.columns.filter((each) => !each.bar && !missing(each.value(chosen.row)));
    const told = (each) => each.title?.(chosen.row) ?? each.format.exact(each.value(chosen.row));
    this.details.replaceChildren(facts(known.map((each) => [each.label, told(each)])));
  }

  #toggle(row, folded = !this.#closed.has(row)) {
    this.#fold(row, folded);
    this.#lay();
  }

  #click(event) {
    const drawn = event.target.closest("[data-index]");
    if (!drawn) return;
    const { row } = this.#shown[Number(drawn.dataset.index)];
    this.#choose(Number(drawn.dataset.index));
    if (event.target.closest(".fold") && row.children.length) this.#toggle(row);
  }

  #key(event) {
    if (event.target !== this.box || event.altKey || event.ctrlKey || event.metaKey) return;
    const index = this.#shown.findIndex(({ row }) => row === this.#active);
    const page = Math.max(1, Math.floor(this.box.clientHeight / ROW) - 2);
    const to = {
      ArrowDown: index + 1,
      ArrowUp: index - 1,
      PageDown: index + page,
      PageUp: index - page,
      Home: 0,
      End: this.#shown.length - 1,
    }[event.key];
    if (to !== undefined) this.#choose(to);
    else if (!this.#steer(event.key, this.#active, index)) return;
    event.preventDefault();
  }

  /** The keys of a tree: right and left open and close or go down and up, Enter and Space fold. */
  #steer(key, row, index) {
    if (!this.tree || !row) return false;
    const parts = row.children.length > 0;
    const closed = this.#closed.has(row);
    if (key === "Enter" || key === " ") {
      if (parts) this.#toggle(row);
    } else if (key === "ArrowRight") {
      if (parts) closed ? this.#toggle(row, false) : this.#choose(index + 1);
    } else if (key === "ArrowLeft") {
      if (parts && !closed) this.#toggle(row, true);
      else if (row.parent) this.#choose(this.#shown.findIndex((each) => each.row === row.parent));
    } else return false;
    return true;
  }
}

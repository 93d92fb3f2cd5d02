// The calls of one pass as a flame chart, a track for each thread.

const BLOCK = 19;
const TRACK = 20;

const passesOf = (view) => {
  const passes = new Map();
  for (const row of view.rank.rows("events")) {
    if (row.root !== view.root) continue;
    passes.set(String(row.pass_number), `${row.pass_number} (${row.mode}, step ${row.step})`);
  }
  return passes;
};

/** The events of each thread as blocks that know what they are in; their times begin at 0. */
const tracksOf = (events) => {
  const threads = new Map();
  // In whole nanoseconds: as floats, the end of a call may come after the begin of the next.
  const timed = events.map((row) => {
    const begin = Math.round(row.begin * 1e9);
    return { row, begin, end: begin + Math.round(row.duration * 1e9) };
  });
  const inside = ({ row }) => Number(row.level === "function"); // a module's only function has its times
  timed.sort((a, b) => a.row.thread - b.row.thread || a.begin - b.begin || b.end - a.end || inside(a) - inside(b));
  for (const { row, begin, end } of timed) {
    if (!threads.has(row.thread))
      threads.set(row.thread, { thread: row.thread, zero: begin, open: [], blocks: [], depth: 0 });
    const track = threads.get(row.thread);
    while (track.open.length && track.open.at(-1).end <= begin) track.open.pop();
    const above = track.open.at(-1) ?? null;
    const block = {
      row,
      track,
      above,
      depth: track.open.length,
      end,
      from: (begin - track.zero) / 1e9,
      to: (end - track.zero) / 1e9,
      haystack: `${address(row)}\n${row.type}`.toLowerCase(),
    };
    track.open.push(block);
    track.blocks.push(block);
    track.depth = Math.max(track.depth, track.open.length);
  }
  return [...threads.values()];
};

const drawTimeline = (host, view) => {
  const passes = passesOf(view);
  if (!passes.size)
    return nothing(host, "No calls of this root were kept one by one. The first and the last passes are, with --time.");
  const chart = element("div");
  let flames;
  const draw = (pass) => {
    chart.replaceChildren();
    const events = view.rank.rows("events").filter((row) => row.root === view.root && String(row.pass_number) === pass);
    flames = new Flames(chart, events);
    if (view.query) view.found(flames.search(view.query));
  };
  const zoom = [
    ["Zoom in", 0.5],
    ["Zoom out", 2],
    ["Whole pass", Infinity],
  ].map(([text, factor]) => element("button", { type: "button", onclick: () => flames.zoom(factor) }, text));
  const ways = WAYS.filter((way) =>
    view.rank.rows("events").some((row) => row.root === view.root && row.direction === way),
  );
  const first = passes.keys().next().value;
  host.append(element("div", { class: "tools" }, chooser("pass", passes, first, draw), ...zoom, legend(ways)), chart);
  draw(first);
  return { search: (query) => view.found(flames.search(query)), recolour: () => flames.draw() };
};

class Flames {
  #active = null;
  #query = "";

  constructor(host, events) {
    this.tracks = tracksOf(events);
    this.end = this.tracks.flatMap(({ blocks }) => blocks).reduce((end, { to }) => Math.max(end, to), 1e-9);
    [this.from, this.to] = [0, this.end];
    let top = TRACK;
    for (const track of this.tracks) {
      track.top = top + (this.tracks.length > 1 ? TRACK : 0);
      top = track.top + track.depth * BLOCK + 6;
    }
    this.sheet = new Sheet(host, {
      label: "Calls over time",
      role: "flame chart",
      height: Math.max(240, window.innerHeight * 0.65),
      draw: (...given) => this.#paint(...given),
      at: (x, y) => this.#text(this.#at(x, y)),
      choose: (x, y) => this.#choose(this.#at(x, y)),
      key: (event) => this.#press(event),
    });
    this.sheet.length = top;
    this.#listen(this.sheet.box);
  }

  search(query) {
    this.#query = query;
    this.draw();
    return this.tracks.reduce(
      (count, { blocks }) => count + blocks.filter(({ haystack }) => haystack.includes(query)).length,
      0,
    );
  }

  draw() {
    this.sheet.draw();
  }

  zoom(factor, at = this.#active ? (this.#active.from + this.#active.to) / 2 : (this.from + this.to) / 2) {
    const length = Math.min(this.end, Math.max((this.to - this.from) * factor, this.end * 1e-6));
    const share = Math.min(1, Math.max(0, (at - this.from) / (this.to - this.from)));
    this.#show(at - share * length, length);
  }

  #show(from, length) {
    this.from = Math.min(Math.max(0, from), this.end - length);
    this.to = this.from + length;
    this.draw();
  }

  #listen(box) {
    let held = null;
    box.addEventListener(
      "wheel",
      (event) => {
        if (!event.ctrlKey && !event.metaKey) return; // the plain wheel scrolls, as everywhere
        event.preventDefault();
        this.zoom(1.0025 ** event.deltaY, this.#time(event.offsetX));
      },
      { passive: false },
    );
    box.addEventListener("dblclick", () => this.#active && this.#zoomTo(this.#active));
    box.addEventListener("pointerdown", (event) => {
      held = { x: event.clientX, from: this.from };
    });
    box.addEventListener("pointerup", () => {
      held = null;
    });
    box.addEventListener("pointerleave", () => {
      held = null;
    });
    box.addEventListener("pointermove", (event) => {
      if (held && event.buttons)
        this.#show(
          held.from - ((event.clientX - held.x) / this.sheet.width) * (this.to - this.from),
          this.to - this.from,
        );
    });
  }

  #zoomTo({ from, to }) {
    const length = Math.min(this.end, Math.max((to - from) * 1.1, this.end * 1e-6));
    this.#show((from + to - length) / 2, length);
  }

  #x(time) {
    return ((time - this.from) / (this.to - this.from)) * this.sheet.width;
  }

  #time(x) {
    return this.from + (x / this.sheet.width) * (this.to - this.from);
  }

  #paint(pen, width, height, scrolled) {
    for (const track of this.tracks) {
      const drawn = new Int32Array(track.depth).fill(-1); // up to which pixel, on each floor
      for (const block of track.blocks) {
        const y = track.top + block.depth * BLOCK - scrolled;
        const [x, end] = [Math.max(-2, this.#x(block.from)), Math.min(width + 2, this.#x(block.to))];
        const hidden =
          x > width || end < 0 || y > height || y < 0 || (end - x < 1 && Math.floor(end) <= drawn[block.depth]);
        if (!hidden || block === this.#active) this.#block(pen, block, x, y, Math.max(0.8, end - x));
        if (!hidden) drawn[block.depth] = Math.floor(end);
      }
      pen.fillStyle = shade("muted");
      if (this.tracks.length > 1) pen.fillText(`thread ${track.thread}`, 4, track.top - TRACK / 2 - scrolled);
    }
    this.#axis(pen, width);
  }

  #block(pen, block, x, y, length) {
    pen.globalAlpha = this.#query && !block.haystack.includes(this.#query) ? 0.25 : 1;
    pen.fillStyle = shade(block.row.direction);
    pen.fillRect(x, y, Math.max(0.8, length - 0.6), BLOCK - 1.5);
    if (length > 34) {
      pen.fillStyle = shade("on-series");
      const name = block.row.name || block.row.path?.split(".").at(-1) || block.row.root;
      pen.fillText(fitted(pen, name, length - 8), x + 4, y + BLOCK / 2);
    }
    pen.globalAlpha = 1;
    if (block !== this.#active) return;
    pen.lineWidth = 2;
    pen.strokeStyle = shade("focus");
    pen.strokeRect(x + 1, y, Math.max(2, length - 2), BLOCK - 2);
  }

  #axis(pen, width) {
    pen.fillStyle = shade("panel");
    pen.fillRect(0, 0, width, TRACK - 2);
    pen.fillStyle = shade("muted");
    const count = Math.max(1, Math.floor(width / 110));
    for (let i = 0; i <= count; i += 1) {
      const x = (width * i) / count;
      pen.textAlign = i === 0 ? "left" : i === count ? "right" : "center";
      pen.fillText(FORMATS.time.text(this.#time(x)), Math.min(Math.max(x, 4), width - 4), TRACK / 2);
    }
    pen.textAlign = "left";
  }

  #at(x, y) {
    const at = y + this.sheet.box.scrollTop;
    const track = this.tracks.find(({ top, depth }) => at >= top && at < top + depth * BLOCK);
    const depth = track && Math.floor((at - track.top) / BLOCK);
    const [time, near] = [this.#time(x), (this.to - this.from) / this.sheet.width];
    return (
      (y >= TRACK &&
        track?.blocks.find((block) => block.depth === depth && block.from - near <= time && time <= block.to + near)) ||
      null
    );
  }

  #text(block) {
    if (!block) return "";
    const { row } = block;
    const call = row.index ? ` [${row.index}]` : "";
    return `${address(row)}${call} ${row.type ? `(${row.type}) ` : ""}· ${row.direction} · ${FORMATS.time.text(row.duration)}, from ${FORMATS.time.text(block.from)} on`;
  }

  #choose(block) {
    if (!block) return;
    this.#active = block;
    const length = this.to - this.from;
    if (block.to < this.from || block.from > this.to) this.#show((block.from + block.to - length) / 2, length);
    this.sheet.reveal(block.track.top - TRACK + block.depth * BLOCK, BLOCK, TRACK);
    this.draw();
    this.sheet.tell(this.#text(block));
  }

  /** Left and right on one floor, up and down between them, plus and minus zoom. */
  #press({ key }) {
    const now = this.#active;
    const factor = { "+": 0.5, "=": 0.5, "-": 2, 0: Infinity, Escape: Infinity }[key];
    if (factor) this.zoom(factor);
    else if (key === "Enter" && now) this.#zoomTo(now);
    else if (key.startsWith("Arrow")) this.#choose(now ? this.#next(key, now) : this.tracks[0].blocks[0]);
    else return false;
    return true;
  }

  #next(key, now) {
    const floor = now.track.blocks.filter(({ depth }) => depth === now.depth);
    if (key === "ArrowRight") return floor[floor.indexOf(now) + 1];
    if (key === "ArrowLeft") return floor[floor.indexOf(now) - 1];
    const track = this.tracks.indexOf(now.track);
    if (key === "ArrowUp") return now.above ?? this.tracks[track - 1]?.blocks[0];
    return now.track.blocks.find(({ above }) => above === now) ?? this.tracks[track + 1]?.blocks[0];
  }
}

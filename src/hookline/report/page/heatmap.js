// Activations, gradients and times over the passes: a row for each tensor, a column for each bin.

const LINE = 17;
const AXIS = 22;
// viridis: told apart also without colour vision and in print, on light and on dark ground.
const VIRIDIS = [
  "#440154",
  "#482878",
  "#3e4989",
  "#31688e",
  "#26828e",
  "#1f9e89",
  "#35b779",
  "#6ece58",
  "#b5de2b",
  "#fde725",
];
const SHADES = Array.from({ length: 256 }, (_, i) => {
  const at = (i / 255) * (VIRIDIS.length - 1);
  const [low, high] = [VIRIDIS[Math.floor(at)], VIRIDIS[Math.ceil(at)]];
  const mix = [1, 3, 5].map((j) => {
    const [a, b] = [low, high].map((each) => parseInt(each.slice(j, j + 2), 16));
    return Math.round(a + (b - a) * (at % 1));
  });
  return `rgb(${mix})`;
});
const METRICS = {
  time: ["time a call", "time"],
  norm: ["norm", "number"],
  abs_max: ["largest magnitude", "number"],
  zero_share: ["share of zeros", "share"],
  nonfinite: ["values not finite", "count"],
};
const SCALES = new Map([
  ["all", "one for all rows"],
  ["row", "each row its own"],
]);
const picked = { metric: "", direction: "", scale: "all" };

/** Which colour a value has: by its logarithm where the values span more than a factor of 10. */
const scaleOf = (rows) => {
  let [low, high, least] = [Infinity, -Infinity, Infinity];
  for (const { values } of rows) {
    for (const value of values) {
      if (!Number.isFinite(value)) continue;
      low = Math.min(low, value);
      high = Math.max(high, value);
      if (value > 0) least = Math.min(least, value);
    }
  }
  const log = low >= 0 && high > 10 * least;
  const [from, to] = log ? [Math.log(least), Math.log(high)] : [low, high];
  const place = (value) =>
    to > from ? Math.round((((log ? Math.log(value) : value) - from) / (to - from)) * 255) : 128;
  const colour = (value) => {
    if (Number.isNaN(value)) return null;
    if (!Number.isFinite(value)) return shade("alarm");
    return log && value === 0 ? shade("zero") : SHADES[place(value)];
  };
  return { log, low: log ? least : low, high, zero: log && low === 0, colour };
};

const heatRows = (view) =>
  inOrder(
    view,
    view.rank
      .rows("series")
      .filter(inView(view))
      .filter((row) => row.metric === picked.metric && row.direction === picked.direction),
  ).map((row) => {
    const leaf = ["", "output", "grad_output"].includes(row.leaf) ? "" : ` ${row.leaf}`;
    return { ...row, label: `${address(row)}${leaf}`, haystack: `${address(row)}${leaf}`.toLowerCase() };
  });

const drawHeatMap = (host, view) => {
  const all = view.rank.rows("series").filter(inView(view));
  if (!all.length)
    return nothing(
      host,
      "Nothing was kept over passes in this root and mode. Statistics are with --stats, times with --time.",
    );
  const named = (name, of) =>
    new Map([...new Set(of.map((row) => row[name]))].map((each) => [each, METRICS[each]?.[0] ?? each]));
  const map = element("div");
  const tools = element("div", { class: "tools" });
  host.append(tools, map);
  let drawn;
  const draw = () => {
    const metrics = named("metric", all);
    if (!metrics.has(picked.metric)) picked.metric = metrics.has("norm") ? "norm" : [...metrics.keys()][0];
    const directions = named(
      "direction",
      all.filter((row) => row.metric === picked.metric),
    );
    if (!directions.has(picked.direction)) [picked.direction] = directions.keys();
    const choose = (name) => (chosen) => {
      picked[name] = chosen;
      draw();
      tools.querySelector(`[name=${name}]`).focus();
    };
    tools.replaceChildren(
      chooser("metric", metrics, picked.metric, choose("metric")),
      chooser("direction", directions, picked.direction, choose("direction")),
      chooser("scale", SCALES, picked.scale, choose("scale")),
    );
    map.replaceChildren();
    drawn = new HeatMap(map, heatRows(view));
    if (view.query) view.found(drawn.search(view.query));
  };
  draw();
  return { search: (query) => view.found(drawn.search(query)), recolour: () => drawn.recolour() };
};

class HeatMap {
  #cell = { row: 0, bin: 0 };

  constructor(host, rows) {
    this.rows = this.all = rows;
    this.kind = FORMATS[METRICS[picked.metric]?.[1] ?? "number"];
    this.first = rows.reduce((first, row) => Math.min(first, row.first), Infinity);
    this.end = rows.reduce((end, row) => Math.max(end, row.first + row.bins * row.width), 0);
    this.key = element("div", { class: "key" });
    host.append(this.key);
    this.sheet = new Sheet(host, {
      label: `${METRICS[picked.metric]?.[0] ?? picked.metric} over passes, ${picked.direction}`,
      role: "heat map",
      height: Math.max(240, window.innerHeight * 0.65),
      draw: (...given) => this.#paint(...given),
      at: (x, y) => this.#text(this.#at(x, y)),
      key: (event) => this.#press(event),
      choose: (x, y) => this.#choose(this.#at(x, y)),
    });
    this.recolour();
  }

  search(query) {
    this.rows = query ? this.all.filter((row) => row.haystack.includes(query)) : this.all;
    this.#cell.row = 0;
    this.#lay();
    return this.rows.length;
  }

  recolour() {
    this.scale = scaleOf(this.all);
    this.own = new Map();
    this.#lay();
    this.key.replaceChildren(...this.#legend());
  }

  #lay() {
    this.sheet.length = AXIS + this.rows.length * LINE;
  }

  #legend() {
    const own = picked.scale === "row";
    const swatch = (kind, text) => element("span", {}, element("i", { class: kind }), text);
    const ends = own ? ["lowest of its row", "highest"] : [this.scale.low, this.scale.high].map(this.kind.text);
    const width = this.all.reduce((widest, row) => Math.max(widest, row.width), 1);
    return [
      element(
        "span",
        {},
        ends[0],
        element("i", { class: "ramp", style: `background: linear-gradient(to right, ${VIRIDIS})` }),
        ends[1],
      ),
      ...(own ? [] : [element("span", {}, this.scale.log ? "logarithmic" : "linear")]),
      ...(this.scale.zero ? [swatch("zero", "0")] : []),
      swatch("none", "nothing known"),
      swatch("alarm", "Inf"),
      ...(width > 1 ? [element("span", {}, `a column is of ${width} passes`)] : []),
    ];
  }

  #scaleOf(row) {
    if (picked.scale === "all") return this.scale;
    if (!this.own.has(row)) this.own.set(row, scaleOf([row]));
    return this.own.get(row);
  }

  get #left() {
    return Math.min(260, Math.round(this.sheet.width * 0.36));
  }

  #x(pass) {
    return this.#left + ((pass - this.first) / (this.end - this.first)) * (this.sheet.width - this.#left);
  }

  #paint(pen, width, height, top) {
    const begin = Math.max(0, Math.floor(top / LINE));
    const last = Math.min(this.rows.length, begin + Math.ceil(height / LINE) + 1);
    for (let i = begin; i < last; i += 1) this.#line(pen, this.rows[i], AXIS + i * LINE - top);
    this.#outline(pen, top);
    this.#axis(pen, width);
  }

  #line(pen, row, y) {
    const { colour } = this.#scaleOf(row);
    pen.fillStyle = shade("fg");
    pen.fillText(fitted(pen, row.label, this.#left - 10), 4, y + LINE / 2);
    for (let bin = 0; bin < row.bins; bin += 1) {
      const [from, to] = [this.#x(row.first + bin * row.width), this.#x(row.first + (bin + 1) * row.width)];
      const fill = colour(row.values[bin]);
      if (fill) {
        pen.fillStyle = fill;
        pen.fillRect(from, y, Math.max(1, to - from + 0.3), LINE - 1);
      }
    }
  }

  #outline(pen, top) {
    const row = this.rows[this.#cell.row];
    if (!row || document.activeElement !== this.sheet.box) return;
    const [from, to] = [0, 1].map((more) => this.#x(row.first + (this.#cell.bin + more) * row.width));
    const y = AXIS + this.#cell.row * LINE - top;
    pen.lineWidth = 2;
    [
      [shade("bg"), 0],
      [shade("focus"), 2],
    ].forEach(([style, more]) => {
      pen.strokeStyle = style;
      pen.strokeRect(from - more / 2, y - more / 2, Math.max(3, to - from) + more, LINE - 1 + more);
    });
  }

  #axis(pen, width) {
    pen.fillStyle = shade("panel");
    pen.fillRect(0, 0, width, AXIS - 1);
    pen.fillStyle = shade("muted");
    pen.fillText("pass", 4, AXIS / 2);
    const last = this.end - 1;
    const count = Math.max(1, Math.floor((width - this.#left) / 90));
    for (let i = 0; i <= count; i += 1) {
      const pass = Math.round(this.first + ((last - this.first) * i) / count);
      pen.textAlign = i === 0 ? "left" : i === count ? "right" : "center";
      pen.fillText(pass, Math.min(this.#x(pass), width - 2), AXIS / 2);
    }
    pen.textAlign = "left";
  }

  #at(x, y) {
    const at = Math.floor((y + this.sheet.box.scrollTop - AXIS) / LINE);
    const row = this.rows[at];
    if (!row || y < AXIS) return null;
    const pass = this.first + ((x - this.#left) / (this.sheet.width - this.#left)) * (this.end - this.first);
    return { row: at, bin: x < this.#left ? -1 : Math.min(row.bins - 1, Math.floor((pass - row.first) / row.width)) };
  }

  #text(cell) {
    if (!cell) return "";
    const row = this.rows[cell.row];
    if (cell.bin < 0) return row.label;
    const first = row.first + cell.bin * row.width;
    const value = row.values[cell.bin];
    return `${row.label} · ${span(first, first + row.width - 1)} · ${METRICS[row.metric]?.[0] ?? row.metric} ${Number.isNaN(value) ? "not known" : this.kind.text(value)}`;
  }

  #choose(cell) {
    if (!cell) return;
    const row = Math.min(Math.max(cell.row, 0), this.rows.length - 1);
    if (row < 0) return;
    this.#cell = { row, bin: Math.min(Math.max(cell.bin, 0), this.rows[row].bins - 1) };
    this.sheet.reveal(row * LINE, LINE, AXIS);
    this.sheet.draw();
    this.sheet.tell(this.#text(this.#cell));
  }

  #press(event) {
    const { row, bin } = this.#cell;
    const page = Math.floor(this.sheet.height / LINE) - 2;
    const to = {
      ArrowDown: [row + 1, bin],
      ArrowUp: [row - 1, bin],
      ArrowRight: [row, bin + 1],
      ArrowLeft: [row, bin - 1],
      PageDown: [row + page, bin],
      PageUp: [row - page, bin],
      Home: [row, 0],
      End: [row, Infinity],
    }[event.key];
    if (to) this.#choose({ row: to[0], bin: to[1] });
    return Boolean(to);
  }
}

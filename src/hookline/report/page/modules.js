// Modules as a tree with the time, memory and work of each.

const WAYS = ["forward", "backward", "recompute"];
const MEMORY = ["output_bytes", "saved_bytes", "self_saved_bytes", "packed_bytes", "allocated_bytes", "peak_bytes"];

const newNode = (path, label, parent) => ({
  path,
  label,
  parent,
  type: "",
  children: [],
  calls: undefined,
  time: {},
  self: undefined,
  total: undefined,
  parameters: 0,
  own: undefined,
  memory: {},
  flops: undefined,
  ownFlops: undefined,
  measured: false,
});

const addTime = (node, row) => {
  const time = (node.time[row.direction] ??= { calls: 0, self: 0, total: 0 });
  time.calls += row.calls;
  time.self += row.self_time;
  time.total += row.total_time;
  node.self = plus(node.self, row.self_time);
  // What was recomputed is a part of the backward that needed it.
  if (row.direction !== "recompute") node.total = plus(node.total, row.total_time);
  node.calls = WAYS.map((way) => node.time[way]?.calls).find((calls) => calls !== undefined);
};

/** The sum where both are known, else that which is. */
const plus = (a, b) => (b === undefined || b === null ? a : (a ?? 0) + b);

const inView = (view) => (row) =>
  row.root === view.root && row.mode === view.mode && (!row.clock || row.clock === view.clock);

/** Rows in the order of the modules; those of one module, and of none, stay as they came. */
const inOrder = (view, rows) => {
  const places = new Map(view.rank.rows("modules").map((row) => [`${row.root}\n${row.path}`, row.place]));
  const place = (row) => places.get(`${row.root}\n${row.path}`) ?? Infinity;
  return rows
    .map((row) => [place(row), row])
    .sort(([a], [b]) => (a === b ? 0 : a - b))
    .map(([, row]) => row);
};

const moduleTree = (view) => {
  const root = newNode("", view.root, null);
  const nodes = new Map([["", root]]);
  const at = (path) => {
    if (!nodes.has(path)) {
      const cut = path.lastIndexOf(".");
      const parent = at(cut < 0 ? "" : path.slice(0, cut));
      const node = newNode(path, path.slice(cut + 1), parent);
      parent.children.push(node);
      nodes.set(path, node);
    }
    return nodes.get(path);
  };
  const each = (table, add) =>
    view.rank
      .rows(table)
      .filter(inView(view))
      .filter((row) => row.level === "module" && row.path !== null)
      .forEach((row) => {
        const node = at(row.path);
        node.type ||= row.type;
        node.measured = true;
        add(node, row);
      });
  const modules = view.rank.rows("modules").filter((row) => row.root === view.root);
  for (const row of modules) {
    const node = at(row.path);
    node.type = row.type;
    node.own = row.parameters;
    for (let above = node; above; above = above.parent) above.parameters += row.parameters;
  }
  each("times", addTime);
  each("memory", (node, row) =>
    MEMORY.forEach((name) => {
      node.memory[name] = plus(node.memory[name], row[name]);
    }),
  );
  each("flops", (node, row) => {
    if (row.direction !== "recompute") node.flops = plus(node.flops, row.total_flops);
    node.ownFlops = plus(node.ownFlops, row.self_flops);
  });
  return [...nodes.values()];
};

const bars = (parts, whole) => ({
  title: parts.map(([way, value, text]) => `${way} ${text}`).join(", "),
  parts: parts.map(([way, value]) =>
    element("i", { class: way, style: `width: ${whole ? (value / whole) * 100 : 0}%` }),
  ),
});

const timeBars = (node, whole, field) =>
  bars(
    WAYS.filter((way) => node.time[way] && (way !== "recompute" || field === "self")).map((way) => [
      way,
      node.time[way][field],
      FORMATS.time.text(node.time[way][field]),
    ]),
    whole,
  );

const timeColumns = (nodes, whole) => {
  const measured = WAYS.filter((way) => nodes.some((node) => node.time[way]));
  return measured
    .flatMap((way) => [
      column(way, (node) => node.time[way]?.total, {
        kind: "time",
        drop: 3,
        width: 10,
        hint: `${way}, calls inside it included`,
      }),
      column(`${way} self`, (node) => node.time[way]?.self, {
        kind: "time",
        drop: 5,
        width: 10,
        hint: `${way}, calls inside it left out`,
      }),
    ])
    .concat(
      column("self", (node) => node.self, { kind: "time", drop: 1, hint: "time of its own in all directions" }),
      column("self share", (node) => part(node.self, whole.self), { kind: "share", drop: 4 }),
    );
};

const worded = (name) => name.replace("_bytes", "").replaceAll("_", " ");

const memoryColumns = (nodes) => {
  const known = MEMORY.filter((name) => nodes.some((node) => node.memory[name] !== undefined));
  if (!known.length) return [];
  const barred = ["peak_bytes", "saved_bytes", "output_bytes"].find((name) => known.includes(name)) ?? known[0];
  const most = nodes.reduce((largest, node) => Math.max(largest, node.memory[barred] ?? 0), 0);
  return [
    column("memory", (node) => node.memory[barred], {
      kind: "bytes",
      width: 10,
      drop: 6,
      hint: `${worded(barred)}, against the largest`,
      bar: (node) => bars([["memory", node.memory[barred] ?? 0, FORMATS.bytes.exact(node.memory[barred])]], most),
    }),
    ...known.map((name) =>
      column(worded(name), (node) => node.memory[name], { kind: "bytes", drop: name === barred ? 4 : 7 }),
    ),
  ];
};

const wholeOf = (nodes) => {
  const self = nodes.reduce((all, node) => plus(all, node.self), 0);
  return { self, total: nodes[0].total ?? self };
};

const moduleColumns = (nodes, flat) => {
  const whole = wholeOf(nodes);
  const known = (value, made) => (nodes.some((node) => value(node) !== undefined) ? [made] : []);
  const wide = flat ? nodes.reduce((most, node) => Math.max(most, node.self ?? 0), 0) : whole.total;
  return [
    column("module", (node) => (flat ? node.path || node.label : node.label), {
      width: 18,
      drop: 0,
      path: flat,
      title: (node) => node.path || node.label,
    }),
    column("type", (node) => node.type, { width: 14, drop: 6 }),
    ...(whole.self
      ? [
          column("time", (node) => (flat ? node.self : node.total), {
            kind: "time",
            width: 14,
            drop: 2,
            hint: flat ? "time of its own, against the longest" : "forward and backward, as a part of the whole",
            bar: (node) => timeBars(node, wide, flat ? "self" : "total"),
          }),
          column("share", (node) => part(node.total, whole.total), {
            kind: "share",
            width: 8,
            drop: flat ? 4 : 0,
            hint: "forward and backward, calls inside it included, of the root's",
          }),
          column("calls", (node) => node.calls, { kind: "count", width: 8, drop: 3 }),
          ...timeColumns(nodes, whole),
        ]
      : []),
    ...memoryColumns(nodes),
    ...known(
      (node) => node.own,
      column("parameters", (node) => node.parameters, {
        kind: "amount",
        width: 11,
        drop: 6,
        hint: "those of modules in it included",
      }),
    ),
    ...known(
      (node) => node.own,
      column("own parameters", (node) => node.own, { kind: "amount", width: 11, drop: 8 }),
    ),
    ...known(
      (node) => node.flops,
      column("FLOPs", (node) => node.flops, {
        kind: "amount",
        drop: 5,
        hint: "forward and backward, calls inside included",
      }),
    ),
    ...known(
      (node) => node.ownFlops,
      column("own FLOPs", (node) => node.ownFlops, { kind: "amount", drop: 7 }),
    ),
  ];
};

/** Which parts of a large tree are folded at first: all but the upper two floors. */
const foldedAtFirst = (nodes) => {
  const depth = (node) => (node.parent ? 1 + depth(node.parent) : 0);
  return nodes.length <= 60 ? [] : nodes.filter((node) => node.children.length && depth(node) >= 2);
};

const SHAPES = new Map([
  ["tree", "as a tree"],
  ["flat", "flat, by own time"],
]);
let shape = "tree";

const drawModules = (host, view) => {
  const nodes = moduleTree(view);
  if (nodes.length === 1 && !nodes[0].type)
    return nothing(host, "No module was called while hooks were on, so there is nothing to show.");
  const table = element("div");
  const folding = [
    ["Fold all", true],
    ["Unfold all", false],
  ].map(([text, folded]) => element("button", { type: "button", onclick: () => grid.foldAll(folded) }, text));
  let grid;
  const draw = () => {
    const flat = shape === "flat";
    for (const button of folding) button.hidden = flat;
    table.replaceChildren();
    grid = new Grid(table, {
      label: flat ? "Modules, flat" : "Modules",
      columns: moduleColumns(nodes, flat),
      tree: !flat,
      found: view.found,
      words: (node) => [node.path || node.label, node.type],
      rows: flat ? nodes.filter((node) => node.measured) : [nodes[0]],
      folded: foldedAtFirst(nodes),
      sort: flat ? { label: "self", down: true } : null,
    });
    if (view.query) grid.search(view.query);
  };
  const choice = chooser("view", SHAPES, shape, (chosen) => {
    shape = chosen;
    draw();
  });
  host.append(
    element(
      "div",
      { class: "tools" },
      choice,
      ...folding,
      legend(["forward", "backward", "recompute"].filter((way) => nodes.some((node) => node.time[way]))),
    ),
    table,
  );
  draw();
  return { search: (query) => grid.search(query), print: (on) => grid.print(on) };
};

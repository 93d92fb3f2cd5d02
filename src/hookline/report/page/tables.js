// All other tables.

/** A panel that is one table. */
const drawTable = (host, view, options) => {
  if (!options.rows.length) return nothing(host, options.empty);
  if (options.tools) host.append(element("div", { class: "tools" }, ...options.tools));
  const grid = new Grid(host, { ...options, found: view.found });
  if (view.query) grid.search(view.query);
  return { search: (query) => grid.search(query), print: (on) => grid.print(on) };
};

// ------------------------------------------------------------------------------------- functions

const OUTSIDE = "outside modules";
const GROUPS = new Map([
  ["module", "by module"],
  ["name", "by function"],
  ["none", "one list"],
]);
let grouping = "module";

const functionNodes = (view) => {
  const nodes = new Map();
  const rows = view.rank
    .rows("times")
    .filter((row) => row.level === "function")
    .filter((row) => inView({ ...view, root: row.path === null ? row.root : view.root })(row));
  for (const row of rows) {
    const key = JSON.stringify([row.root, row.path, row.name]);
    if (!nodes.has(key)) {
      nodes.set(key, {
        ...newNode(address(row), row.name, null),
        name: row.name,
        type: row.type,
        owner: row.path === null ? OUTSIDE : row.path || row.root,
      });
    }
    addTime(nodes.get(key), row);
  }
  return [...nodes.values()];
};

const groupedBy = (nodes, key) => {
  const groups = new Map();
  for (const node of nodes) {
    if (!groups.has(key(node))) groups.set(key(node), { ...newNode(key(node), key(node), null), kind: "group" });
    const group = groups.get(key(node));
    node.parent = group;
    group.children.push(node);
    for (const way of WAYS.filter((each) => node.time[each])) {
      addTime(group, {
        direction: way,
        calls: node.time[way].calls,
        self_time: node.time[way].self,
        total_time: node.time[way].total,
      });
    }
  }
  return [...groups.values()];
};

const drawFunctions = (host, view) => {
  const draw = () => {
    host.replaceChildren();
    const nodes = functionNodes(view);
    const whole = { self: nodes.reduce((all, node) => plus(all, node.self), 0) };
    const rows = {
      module: () => groupedBy(nodes, (node) => node.owner),
      name: () => groupedBy(nodes, (node) => node.name),
      none: () => nodes,
    }[grouping]();
    const most = rows.reduce((longest, row) => Math.max(longest, row.self ?? 0), 0);
    const label = (node) => (node.kind ? node.label : grouping === "module" ? node.name : node.path);
    const choice = chooser("group", GROUPS, grouping, (chosen) => {
      grouping = chosen;
      drawn = draw();
    });
    const ways = WAYS.filter((way) => nodes.some((node) => node.time[way]));
    return drawTable(host, view, {
      label: "Functions",
      tree: grouping !== "none",
      rows,
      sort: { label: "self", down: true },
      words: (node) => [node.path, node.owner, node.type],
      tools: [choice, legend(ways)],
      empty: "No function was timed in this root and mode: run with --level function or --level both.",
      columns: [
        column("function", label, { width: 18, drop: 0, path: grouping === "none", title: (node) => node.path }),
        ...(nodes.some((node) => node.type) ? [column("type", (node) => node.type, { width: 12, drop: 6 })] : []),
        column("time", (node) => node.self, {
          kind: "time",
          width: 14,
          drop: 2,
          hint: "time of its own, against the longest",
          bar: (node) => timeBars(node, most, "self"),
        }),
        column("calls", (node) => node.calls, { kind: "count", width: 8, drop: 3 }),
        ...timeColumns(nodes, whole),
      ],
    });
  };
  let drawn = draw();
  return { search: (query) => drawn.search?.(query), print: (on) => drawn.print?.(on) };
};

// ------------------------------------------------------------------------------------ statistics

const drawStatistics = (host, view) => {
  const rows = inOrder(view, view.rank.rows("stats").filter(inView(view)));
  const number = (label, name = label, drop = 5) => column(label, (row) => row[name], { kind: "number", drop });
  return drawTable(host, view, {
    label: "Statistics",
    rows,
    words: (row) => [address(row), row.type, row.leaf, row.direction],
    empty: "No activations or gradients were looked at in this root and mode: run with --stats.",
    columns: [
      column("module", address, { width: 18, drop: 0, path: true }),
      column("type", (row) => row.type, { width: 12, drop: 8 }),
      column("tensor", (row) => row.leaf, { width: 13, drop: 1 }),
      number("mean", "mean", 3),
      number("std", "std", 2),
      number("min", "minimum"),
      number("max", "maximum"),
      number("|max|", "abs_max", 4),
      number("norm", "norm", 0),
      column("zeros", (row) => row.zero_share, { kind: "share", width: 8, drop: 3 }),
      column("NaN", (row) => row.nan, { kind: "amount", width: 7, drop: 4 }),
      column("Inf", (row) => row.inf, { kind: "amount", width: 7, drop: 4 }),
      column("calls", (row) => row.calls, { kind: "count", width: 7, drop: 6 }),
      column("values", (row) => row.count, { kind: "amount", width: 8, drop: 7, hint: "finite values in all" }),
      column("loss scale", (row) => row.scale, { kind: "number", drop: 9, usual: 1 }),
    ],
  });
};

const drawParameters = (host, view) => {
  const rows = view.rank.rows("parameters").filter((row) => row.root === view.root);
  const number = (label, name, drop, hint) => column(label, (row) => row[name], { kind: "number", drop, hint });
  return drawTable(host, view, {
    label: "Parameters",
    rows,
    words: (row) => [row.name, ...row.ties, row.optimizer],
    empty: "No optimizer step was looked at in this root: run with --stats.",
    columns: [
      column("parameter", (row) => row.name, { width: 18, drop: 0, path: true }),
      column("shape", (row) => (row.shape.length ? row.shape.join(" × ") : "scalar"), { width: 12, drop: 5 }),
      number("gradient norm", "grad_norm", 0, "mean over steps"),
      number("largest", "grad_norm_max", 3, "the largest gradient norm"),
      number("latest", "grad_norm_last", 6, "the latest gradient norm"),
      number("update ratio", "update_ratio", 0, "mean of ‖Δw‖ / ‖w‖ over steps; about 0.001 is usual"),
      number("largest ratio", "update_ratio_max", 4),
      number("latest ratio", "update_ratio_last", 7),
      number("weight norm", "weight_norm", 1, "after the latest step"),
      column("not finite", (row) => row.nonfinite, {
        kind: "count",
        width: 7,
        drop: 4,
        hint: "steps in which the gradient was not finite",
      }),
      column("steps", (row) => row.steps, { kind: "count", width: 7, drop: 5 }),
      column("optimizer", (row) => row.optimizer, { width: 10, drop: 8 }),
      column("loss scale", (row) => row.scale, { kind: "number", drop: 9, usual: 1 }),
      column("also", (row) => row.ties, { width: 10, drop: 9, hint: "other names of the same parameter" }),
      column("note", (row) => row.note, { width: 10, drop: 8 }),
    ],
  });
};

// ---------------------------------------------------------------------- what was found to be wrong

const VERDICTS = ["producer", "bad parameter", "propagator"];

const findings = (view) =>
  view.rank
    .rows("nonfinite")
    .toSorted((a, b) => VERDICTS.indexOf(a.verdict) - VERDICTS.indexOf(b.verdict) || a.pass_number - b.pass_number);

const looked = ({ info }) => !info?.options.length || info.options.includes("--nonfinite");

const noneFound = ({ rank }) => {
  if (looked(rank)) return "No NaN or Inf was found.";
  const places = rank.rows("stats").filter((row) => row.nan || row.inf).length;
  const seen = ` Statistics saw them in ${places.toLocaleString("en")} ${places === 1 ? "place" : "places"}.`;
  return `NaN and Inf were not looked for (--nonfinite).${places ? seen : ""}`;
};

const drawNonFinite = (host, view) => {
  return drawTable(host, view, {
    label: "Non-finite values",
    rows: findings(view),
    words: (row) => [address(row), row.type, row.verdict, row.cause],
    empty: noneFound(view),
    columns: [
      column("module", address, { width: 16, drop: 0, path: true }),
      column("verdict", (row) => row.verdict, {
        width: 14,
        drop: 0,
        hint: "producer: what went in was finite; propagator: it was not; bad parameter: a parameter is not finite",
      }),
      column("tensor", (row) => row.leaf, { width: 14, drop: 2 }),
      column("cause", (row) => row.cause, { width: 16, drop: 4 }),
      column("NaN", (row) => row.nan, { kind: "amount", width: 8, drop: 1 }),
      column("Inf", (row) => row.inf, { kind: "amount", width: 8, drop: 1 }),
      column("pass", (row) => row.pass_number, { kind: "count", width: 7, drop: 1 }),
      column("step", (row) => row.step, { kind: "count", width: 7, drop: 5 }),
      column("times", (row) => row.times, { kind: "count", width: 7, drop: 3, hint: "in how many calls" }),
      column("direction", (row) => row.direction, { width: 10, drop: 3 }),
      column("mode", (row) => row.mode, { width: 9, drop: 5 }),
      column("shape", (row) => row.shape.join(" × "), { width: 12, drop: 6 }),
      column("dtype", (row) => row.dtype, { width: 10, drop: 6 }),
      column("first at", (row) => row.position && `[${row.position}]`, {
        width: 10,
        drop: 6,
        hint: "the index of the first value that is not finite",
      }),
      column("call", (row) => row.index, { kind: "count", width: 6, drop: 8 }),
      column("type", (row) => row.type, { width: 12, drop: 7 }),
      column("root", (row) => row.root, { width: 10, drop: 8 }),
      column("loss scale", (row) => row.scale, { kind: "number", width: 9, drop: 9 }),
      column("step skipped", (row) => row.skipped, { width: 8, drop: 9 }),
    ],
  });
};

const noneSilent = ({ rank }) =>
  rank.info?.state === "running"
    ? "What never fired is found out at the end of a run."
    : "All that was watched was seen.";

const drawSilent = (host, view) => {
  return drawTable(host, view, {
    label: "Never fired",
    rows: view.rank.rows("silent"),
    words: (row) => [row.path || row.root, row.type, row.cause, row.advice],
    empty: noneSilent(view),
    columns: [
      column("module", (row) => row.path || row.root, { width: 16, drop: 0, path: true }),
      column("cause", (row) => row.cause, { width: 13, drop: 0 }),
      column("what is known, and what to do", (row) => row.advice, { width: 44, drop: 2, grow: true }),
      column("type", (row) => row.type, { width: 16, drop: 3 }),
      column("hooks", (row) => row.hooks, { width: 14, drop: 4 }),
      column("root", (row) => row.root, { width: 10, drop: 5 }),
    ],
  });
};

const drawRanks = (host, view) => {
  const { remarks, rows } = JSON.parse(at("over-ranks").textContent);
  const [processes, times] = [element("section"), element("section")];
  host.append(element("ul", {}, ...remarks.map((text) => element("li", {}, text))), processes, times);
  const drawn = [drawProcesses(processes, view), drawOverRanks(times, view, rows.filter(inView(view)))];
  return {
    search: (query) => drawn.forEach((each) => each.search?.(query)),
    print: (on) => drawn.forEach((each) => each.print?.(on)),
  };
};

const drawProcesses = (host, view) => {
  return drawTable(host, view, {
    label: "Ranks",
    rows: view.ranks.map((rank) => rank.info).filter(Boolean),
    words: (row) => [row.host, row.state],
    empty: "No process wrote anything.",
    columns: [
      column("rank", (row) => row.rank, { kind: "count", width: 6, drop: 0 }),
      column("state", (row) => row.state, { width: 12, drop: 0 }),
      column("duration", (row) => row.updated - row.started, { kind: "time", width: 12, drop: 0 }),
      column("steps", (row) => row.steps, { kind: "count", drop: 1 }),
      column("host", (row) => row.host, { width: 14, drop: 2 }),
      column("process", (row) => row.process, { kind: "count", drop: 3 }),
      column("error", (row) => row.error, { width: 30, drop: 4 }),
    ],
  });
};

/** The time of a call over all processes, as `record/merge.py` tells it. */
const drawOverRanks = (host, view, rows) => {
  return drawTable(host, view, {
    label: "Time of a call over the ranks",
    rows,
    words: (row) => [address(row), row.type],
    empty: "Nothing ran in several processes.",
    columns: [
      column("module or function", address, { width: 26, drop: 0 }),
      column("direction", (row) => row.direction, { width: 10, drop: 0 }),
      column("minimum", (row) => row.minimum, { kind: "time", drop: 2 }),
      column("median", (row) => row.median, { kind: "time", drop: 0 }),
      column("maximum", (row) => row.maximum, { kind: "time", drop: 0 }),
      column("slowest rank", (row) => row.slowest, { kind: "count", drop: 1 }),
      column("ranks", (row) => row.ranks, { kind: "count", drop: 3 }),
    ],
  });
};

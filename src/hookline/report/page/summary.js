// What the run was, and what is worth a look.

const STATES = {
  running:
    "It was still running when this was written, or it was killed. What follows is up to the last time that its file was written to.",
  failed: "An error ended it.",
  interrupted: "It was interrupted (Ctrl-C).",
};

const card = (title, ...parts) => element("section", { class: "card" }, element("h2", {}, title), ...parts);

/** A short table whose columns from the third on are numbers. */
const simpleTable = (names, rows) => {
  const cells = (tag, texts) =>
    element("tr", {}, ...texts.map((each, i) => element(tag, { class: i > 1 ? "number" : "" }, each)));
  return element(
    "table",
    {},
    element("thead", {}, cells("th", names)),
    element("tbody", {}, ...rows.map((each) => cells("td", each))),
  );
};

const slowest = (view) => {
  const nodes = moduleTree(view);
  const whole = wholeOf(nodes);
  const timed = nodes
    .filter((node) => node.self)
    .sort((a, b) => b.self - a.self)
    .slice(0, 8);
  const rows = timed.map((node) => [
    element("span", { title: node.path || node.label }, node.path || node.label),
    node.type,
    element("span", { title: FORMATS.time.exact(node.self) }, FORMATS.time.text(node.self)),
    FORMATS.share.text(part(node.self, whole.self)),
  ]);
  if (!rows.length) return element("p", {}, "No module was timed in this root and mode.");
  return simpleTable(["module", "type", "self", "share"], rows);
};

const notable = (view) => {
  const count = (number, one, many) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
  const [bad, silent] = [findings(view), view.rank.rows("silent")];
  const [first] = bad;
  const seen = first?.verdict === "producer" ? "first made by" : "first seen at";
  const link = (id, text) => element("li", {}, element("a", { href: `#${id}` }, text));
  return element(
    "ul",
    {},
    link(
      "nonfinite",
      bad.length
        ? `NaN or Inf in ${count(bad.length, "place", "places")}, ${seen} ${address(first)} (pass ${first.pass_number})`
        : noneFound(view),
    ),
    link(
      "silent",
      silent.length
        ? `${count(silent.length, "module or function", "modules or functions")} never fired`
        : noneSilent(view),
    ),
  );
};

const uncountedOperators = (view) => {
  const operators = new Map();
  for (const { operator, reason, calls } of view.rank.rows("uncounted")) {
    const known = operators.get(operator) ?? [operator, reason, 0];
    operators.set(operator, [operator, reason, known[2] + calls]);
  }
  return [...operators.values()].map(([operator, reason, calls]) => [operator, reason, FORMATS.count.text(calls)]);
};

const drawSummary = (host, view) => {
  const { info } = view.rank;
  if (!info) return nothing(host, "This process was killed before it wrote anything.");
  const passes = view.rank.rows("passes").map((row) => [row.root, row.mode, FORMATS.count.text(row.passes)]);
  const faults = view.rank.rows("faults");
  const uncounted = uncountedOperators(view);
  host.append(
    element(
      "div",
      { class: "cards" },
      card(
        "Run",
        facts([
          ["state", element("span", { class: `state ${info.state}` }, info.state)],
          ["program", element("code", {}, at("program").textContent)],
          ["began", new Date(info.started * 1000).toLocaleString()],
          [
            "lasted",
            element(
              "span",
              { title: FORMATS.time.exact(info.updated - info.started) },
              FORMATS.time.text(info.updated - info.started),
            ),
          ],
          ["optimizer steps", FORMATS.count.text(info.steps)],
          ["measured", info.options.join(" ")],
        ]),
        ...(STATES[info.state] ? [element("p", {}, STATES[info.state])] : []),
        ...(info.error ? [element("pre", { class: "error" }, info.error)] : []),
      ),
      card("Where the time went", slowest(view)),
      card("Worth a look", notable(view)),
      card(
        "Passes",
        passes.length ? simpleTable(["root", "mode", "passes"], passes) : element("p", {}, "No model ran."),
      ),
      card(
        "Made with",
        facts([
          ["hookline", info.hookline],
          ["torch", info.torch],
          ["Python", info.python],
          ["on", info.platform],
          ["host", info.host],
          ["process", String(info.process)],
          ["rank", info.ranks > 1 ? `${info.rank} of ${info.ranks}` : ""],
        ]),
      ),
      ...(uncounted.length
        ? [card("FLOPs that are not known", simpleTable(["operator", "why", "calls"], uncounted))]
        : []),
      ...(faults.length
        ? [
            card(
              "Faults of hookline's own, and what could not be done",
              ...faults.map((row) => element("pre", { class: "error" }, row.text)),
            ),
          ]
        : []),
    ),
  );
  return {};
};

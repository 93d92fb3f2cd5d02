// The page: its panels, what is chosen, and what is searched for.

// `needs`: tables besides those of the first view.
const FIRST = ["run", "modules", "passes", "times", "nonfinite", "silent", "faults", "uncounted"];
const PANELS = [
  { id: "summary", label: "Summary", draw: drawSummary },
  { id: "modules", label: "Modules", draw: drawModules, needs: ["memory", "flops"] },
  { id: "functions", label: "Functions", draw: drawFunctions },
  { id: "heatmap", label: "Heat map", draw: drawHeatMap, needs: ["series"] },
  { id: "timeline", label: "Timeline", draw: drawTimeline, needs: ["events"] },
  { id: "nonfinite", label: "Non-finite", draw: drawNonFinite, counted: true },
  { id: "parameters", label: "Parameters", draw: drawParameters, needs: ["parameters"] },
  { id: "statistics", label: "Statistics", draw: drawStatistics, needs: ["stats"] },
  { id: "silent", label: "Never fired", draw: drawSilent, counted: true },
  { id: "ranks", label: "Ranks", draw: drawRanks, several: true },
];

const at = (id) => document.getElementById(id);
const page = { rank: 0, root: "", mode: "", clock: "", panel: PANELS[0], drawn: {}, query: "" };
const ranks = Array.from({ length: Number(document.body.dataset.ranks) }, (_, i) => new Rank(i));

/** A place to keep a choice, where the browser gives one to a page from a file. */
const stored = {
  get: (name) => {
    try {
      return localStorage.getItem(`hookline-${name}`);
    } catch {
      return null;
    }
  },
  set: (name, value) => {
    try {
      localStorage.setItem(`hookline-${name}`, value);
    } catch {
      /* not remembered */
    }
  },
};

// What there is to choose from, each once, in the order of the rows.
const choices = (rank, name) => {
  const tables = { root: ["modules", "passes", "times"], mode: ["passes", "times"], clock: ["times"] }[name];
  return new Map(
    tables
      .flatMap((table) => rank.rows(table).map((row) => row[name]))
      .filter((each) => each)
      .map((each) => [each, each]),
  );
};

const drawChoices = () => {
  const rank = ranks[page.rank];
  const boxes = [];
  if (ranks.length > 1)
    boxes.push(
      chooser(
        "rank",
        ranks.map((each, i) => [String(i), each.info?.rank ?? i]),
        String(page.rank),
        (chosen) => choose("rank", Number(chosen)),
      ),
    );
  for (const name of ["root", "mode", "clock"]) {
    const known = choices(rank, name);
    if (!known.has(page[name])) page[name] = known.keys().next().value ?? "";
    if (known.size > 1) boxes.push(chooser(name, known, page[name], (chosen) => choose(name, chosen)));
  }
  at("choices").replaceChildren(...boxes);
};

const choose = async (name, chosen) => {
  delete document.documentElement.dataset.ready;
  page[name] = chosen;
  await ranks[page.rank].load(FIRST);
  drawChoices();
  at("choices").querySelector(`[name=${name}]`)?.focus();
  await open();
};

const tell = (count) => {
  at("found").textContent = page.query ? `${count.toLocaleString("en")} found` : "";
};

const drawPanel = async () => {
  const { panel } = page;
  const rank = ranks[page.rank];
  // Where nobody looked for NaN, what statistics saw of it is told.
  await rank.load(panel.needs ?? (looked(rank) ? [] : ["stats"]));
  if (panel !== page.panel) return; // another one was opened meanwhile
  const host = element("div");
  at("panel").replaceChildren(element("h2", { class: "print-only" }, page.panel.label), host);
  at("panel").setAttribute("aria-labelledby", `tab-${page.panel.id}`);
  tell(0);
  at("found").textContent = "";
  page.drawn = page.panel.draw(host, { ...page, rank, ranks, found: tell });
  document.documentElement.dataset.ready = panel.id; // for tests, which wait for it
};

const drawTabs = () => {
  const focused = at("tabs").contains(document.activeElement);
  const shown = PANELS.filter(({ several }) => !several || ranks.length > 1);
  at("tabs").replaceChildren(
    ...shown.map(({ id, label, counted }) => {
      const count = counted ? ranks[page.rank].rows(id).length : 0;
      return element(
        "a",
        {
          role: "tab",
          href: `#${id}`,
          id: `tab-${id}`,
          "aria-controls": "panel",
          "aria-selected": String(id === page.panel.id),
          tabindex: id === page.panel.id ? 0 : -1,
        },
        label,
        ...(count ? [element("b", {}, ` ${count}`)] : []),
      );
    }),
  );
  const chosen = at(`tab-${page.panel.id}`);
  if (focused) chosen.focus();
  chosen.scrollIntoView({ block: "nearest", inline: "nearest" });
};

const open = async () => {
  page.panel = PANELS.find(({ id }) => `#${id}` === location.hash) ?? PANELS[0];
  drawTabs();
  await drawPanel();
};

const stepTab = (event) => {
  const tabs = [...at("tabs").children];
  const now = tabs.indexOf(document.activeElement);
  const to = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: tabs.length - 1 }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  location.hash = tabs[(to + tabs.length) % tabs.length].hash;
};

const search = () => {
  page.query = at("search").value.trim().toLowerCase();
  page.drawn.search?.(page.query);
  if (!page.query) tell(0);
};

const dark = matchMedia("(prefers-color-scheme: dark)");

const colour = (scheme) => {
  const now = scheme ?? (dark.matches ? "dark" : "light");
  document.documentElement.dataset.scheme = now;
  at("theme").textContent = now === "dark" ? "Light" : "Dark";
  at("theme").setAttribute("aria-label", `Use ${now === "dark" ? "light" : "dark"} colours`);
  page.drawn.recolour?.();
};

const listen = () => {
  addEventListener("hashchange", () => open());
  // In a notebook's frame a link is taken as one to the page around it, so it is not left to the browser.
  addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link) return;
    event.preventDefault();
    location.hash = link.hash;
  });
  at("tabs").addEventListener("keydown", stepTab);
  at("search").addEventListener("input", search);
  at("search").addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      event.target.value = "";
      search();
      event.target.blur();
    }
  });
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.matches("input, select")) return;
    event.preventDefault();
    at("search").select();
  });
  at("theme").addEventListener("click", () => {
    const scheme = document.documentElement.dataset.scheme === "dark" ? "light" : "dark";
    stored.set("scheme", scheme);
    colour(scheme);
  });
  dark.addEventListener("change", () => colour(stored.get("scheme")));
  addEventListener("beforeprint", () => page.drawn.print?.(true));
  addEventListener("afterprint", () => page.drawn.print?.(false));
};

colour(stored.get("scheme"));
try {
  await ranks[0].load(FIRST);
  await Promise.all(ranks.map((rank) => rank.load(["run"])));
  drawChoices();
  listen();
  await open();
} catch (error) {
  at("panel").replaceChildren(
    element("p", { class: "error" }, `The report could not be drawn: ${error}. It needs a browser of 2023 or later.`),
  );
  throw error;
}

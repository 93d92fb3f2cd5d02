// Numbers as people read them; `exact` is what a tooltip says.

const significant = (value, digits = 3) => {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(digits - 1);
  const after = size === 0 ? 0 : digits - 1 - Math.floor(Math.log10(size));
  return value.toFixed(Math.min(Math.max(after, 0), 6));
};

const scaled = (value, step, units) => {
  let place = 0;
  while (Math.abs(value) >= step * 0.9995 && place < units.length - 1) {
    value /= step;
    place += 1;
  }
  return `${place || value % 1 ? significant(value) : value}${units[place]}`;
};

const finiteOr = (show) => (value) => {
  if (value === null || value === undefined) return "";
  if (Number.isNaN(value)) return "–";
  return Number.isFinite(value) ? show(value) : value > 0 ? "∞" : "−∞";
};

const duration = (seconds) => {
  const whole = Math.round(seconds);
  if (whole >= 3600) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  if (whole >= 60) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  const [size, unit] = seconds < 0.9995e-3 ? [1e6, "µs"] : seconds < 0.9995 ? [1e3, "ms"] : [1, "s"];
  return `${significant(seconds * size)} ${unit}`;
};

const share = (value) => {
  if (value > 0 && value < 1e-5) return "< 0.001 %";
  return `${value > 0 && value < 1e-3 ? significant(value * 100, 2) : (value * 100).toFixed(1)} %`;
};

const grouped = (value) => value.toLocaleString("en", { maximumFractionDigits: 12 });

/** All the digits that the page has. */
const exactly = (value) => String(Number(value.toPrecision(12)));

const plain = (value) =>
  value === null || value === undefined ? "" : Array.isArray(value) ? value.join(", ") : String(value);

const FORMATS = {
  time: { text: finiteOr(duration), exact: finiteOr((value) => `${exactly(value)} s`) },
  count: { text: finiteOr(grouped), exact: finiteOr(grouped) },
  amount: {
    text: finiteOr((value) => scaled(value, 1000, ["", " k", " M", " G", " T", " P"])),
    exact: finiteOr(grouped),
  },
  bytes: {
    text: finiteOr((value) => scaled(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB"])),
    exact: finiteOr((value) => `${grouped(value)} bytes`),
  },
  share: { text: finiteOr(share), exact: finiteOr((value) => `${exactly(value * 100)} %`) },
  number: { text: finiteOr(significant), exact: finiteOr(exactly) },
  words: { text: plain, exact: plain },
};

/** A part of a whole, where both are known. */
const part = (value, whole) => (value === undefined || !whole ? undefined : value / whole);

const span = (first, last) => (last > first ? `passes ${first}–${last}` : `pass ${first}`);

/** The address of a function, the path of a module, or the root's name. */
const address = (row) => {
  if (row.path === null) return row.name ? `:${row.name}` : "outside modules";
  return row.name ? `${row.path}:${row.name}` : row.path || row.root;
};

// The columns of tables: what they show, which have room, and how rows are sorted by them.

const collator = new Intl.Collator("en", { numeric: true });

const missing = (value) =>
  value === null || value === undefined || value === "" || Number.isNaN(value) || value.length === 0;

/**
 * A column: what it shows of a row, as which kind of number, how wide it is, how soon it is dropped
 * where there is no room (0: never), and which value is so `usual` that it need not be told.
 */
const column = (label, value, options = {}) => ({
  label,
  value,
  format: FORMATS[options.kind ?? "words"],
  width: 9,
  drop: 1,
  ...options,
  number: (options.kind ?? "words") !== "words",
});

const widthOf = (columns) => columns.reduce((sum, each) => sum + each.width, 0);

/** The columns that have room, the least important ones left out first. */
const fittingColumns = (columns, room) => {
  let kept = [...columns];
  for (let drop = 9; drop > 0 && widthOf(kept) > room; drop -= 1) {
    for (const each of columns.filter((other) => other.drop === drop).reverse()) {
      if (widthOf(kept) > room) kept = kept.filter((other) => other !== each);
    }
  }
  return kept;
};

/** Rows by a column; those of which nothing is known come last either way. */
const inSortOrder = (rows, columns, sort) => {
  const by = columns.find((each) => each.label === sort?.label);
  if (!by || rows.length < 2) return rows;
  const sign = sort.down ? -1 : 1;
  const keyed = rows.map((row) => ({ row, key: by.value(row) }));
  const compare = by.number ? (a, b) => a.key - b.key : (a, b) => collator.compare(a.key, b.key);
  const present = keyed.filter(({ key }) => !missing(key)).sort((a, b) => sign * compare(a, b));
  return [...present, ...keyed.filter(({ key }) => missing(key))].map(({ row }) => row);
};

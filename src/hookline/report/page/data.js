// The rows of one process; `report/packed.py` says how they are packed. A table is read when a
// panel first needs it, so that large ones do not delay the first view.

class Rank {
  #rows = new Map();
  #sources;

  constructor(number) {
    const all = document.querySelectorAll(`script[data-rank="${number}"]`);
    this.#sources = new Map([...all].map((each) => [each.dataset.table, each.textContent]));
  }

  /** Read some tables; `rows` knows them from then on. */
  async load(names) {
    await Promise.all(
      names
        .filter((name) => this.#sources.has(name) && !this.#rows.has(name))
        .map(async (name) => {
          this.#rows.set(name, rowsOf(await inflated(this.#sources.get(name))));
        }),
    );
  }

  rows(name) {
    return this.#rows.get(name) ?? [];
  }

  get info() {
    return this.rows("run")[0];
  }
}

const inflated = async (base64) => {
  const packed = atob(base64);
  const bytes = new Uint8Array(packed.length);
  for (let i = 0; i < bytes.length; i += 1) bytes[i] = packed.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Response(stream).arrayBuffer();
};

const rowsOf = (buffer) => {
  const length = new DataView(buffer).getUint32(0, true);
  const { count, numbers, places, texts } = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
  const rows = Array.from({ length: count }, () => ({}));
  for (const [column, values] of Object.entries(places)) {
    for (let i = 0; i < count; i += 1) rows[i][column] = texts[values[i]];
  }
  for (const [column, values] of Object.entries(numbers)) {
    for (let i = 0; i < count; i += 1) rows[i][column] = typeof values[i] === "string" ? Number(values[i]) : values[i];
  }
  const planes = new Uint8Array(buffer, 4 + length);
  if (planes.length) giveValues(rows, planes);
  return rows;
};

const giveValues = (series, planes) => {
  const count = planes.length / 2;
  const bits = new Uint32Array(count);
  for (let i = 0; i < count; i += 1) bits[i] = (planes[i] << 24) | (planes[count + i] << 16);
  const numbers = new Float32Array(bits.buffer);
  let begin = 0;
  for (const row of series) {
    row.values = numbers.subarray(begin, begin + row.bins);
    begin += row.bins;
  }
};

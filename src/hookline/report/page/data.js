// The rows of one process; `report/packed.py` says how they are packed.

class Rank {
  #rows = new Map();

  static async read(base64) {
    const packed = atob(base64);
    const bytes = new Uint8Array(packed.length);
    for (let i = 0; i < bytes.length; i += 1) bytes[i] = packed.charCodeAt(i);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
    return new Rank(await new Response(stream).arrayBuffer());
  }

  constructor(buffer) {
    const length = new DataView(buffer).getUint32(0, true);
    const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)));
    this.texts = head.texts;
    this.tables = head.tables;
    this.planes = new Uint8Array(buffer, 4 + length);
  }

  /** The rows of a table, as objects. */
  rows(name) {
    if (!this.#rows.has(name)) this.#rows.set(name, this.#made(name));
    return this.#rows.get(name);
  }

  get info() {
    return this.rows("run")[0];
  }

  #made(name) {
    const table = this.tables[name];
    if (!table) return [];
    const rows = Array.from({ length: table.count }, () => ({}));
    for (const [column, places] of Object.entries(table.texts)) {
      rows.forEach((row, i) => { row[column] = this.texts[places[i]]; });
    }
    for (const [column, values] of Object.entries(table.numbers)) {
      rows.forEach((row, i) => { row[column] = typeof values[i] === "string" ? Number(values[i]) : values[i]; });
    }
    if (name === "series") this.#unpack(rows);
    return rows;
  }

  #unpack(series) {
    const count = this.planes.length / 2;
    const bits = new Uint32Array(count);
    for (let i = 0; i < count; i += 1) bits[i] = (this.planes[i] << 24) | (this.planes[count + i] << 16);
    const numbers = new Float32Array(bits.buffer);
    let begin = 0;
    for (const row of series) {
      row.values = numbers.subarray(begin, begin + row.bins);
      begin += row.bins;
    }
  }
}

// What the two drawings share: sharp canvases, colours of the scheme, tips at the pointer.

const shade = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** A canvas that stays in view while its box scrolls over what is drawn on it. */
class Sheet {
  constructor(host, { label, role, height, draw, at, choose, key }) {
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.spacer = element("div", { class: "spacer" });
    this.box = element(
      "div",
      {
        class: "sheet",
        tabindex: 0,
        role: "application",
        "aria-roledescription": role,
        "aria-label": label,
        style: `max-height: ${height}px`,
        onscroll: () => this.draw(),
        onkeydown: (event) => key(event) && event.preventDefault(),
      },
      this.canvas,
      this.spacer,
    );
    this.tip = element("div", { class: "tip", hidden: true });
    this.told = element("output", { class: "told", "aria-live": "polite" }, "Point at it, or use the arrow keys.");
    host.append(this.box, this.tip, this.told);
    this.paint = draw;
    this.box.addEventListener("pointermove", (event) => this.#point(event, at));
    this.box.addEventListener("pointerleave", () => {
      this.tip.hidden = true;
    });
    this.box.addEventListener("click", (event) => choose(...this.#place(event)));
    new ResizeObserver(() => this.draw()).observe(this.box);
  }

  set length(pixels) {
    this.total = pixels;
    this.draw();
  }

  get width() {
    return this.box.clientWidth;
  }

  get height() {
    return this.box.clientHeight;
  }

  draw() {
    const { width } = this;
    this.spacer.style.height = `${this.total}px`;
    this.canvas.style.height = "0"; // the box is as high as what it shows, not as its canvas was
    const { height } = this;
    const ratio = window.devicePixelRatio || 1;
    Object.assign(this.canvas.style, { width: `${width}px`, height: `${height}px` });
    const size = { width: Math.round(width * ratio), height: Math.round(height * ratio) };
    if (this.canvas.width !== size.width || this.canvas.height !== size.height) Object.assign(this.canvas, size);
    const pen = this.canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.fillStyle = shade("panel");
    pen.fillRect(0, 0, width, height);
    pen.font = "12px system-ui, sans-serif";
    pen.textBaseline = "middle";
    this.paint(pen, width, height, this.box.scrollTop);
  }

  /** Scroll so that what is drawn from `top` on is in view, `margin` being covered above. */
  reveal(top, length, margin) {
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    const bottom = top + length + margin - this.height;
    if (bottom > this.box.scrollTop) this.box.scrollTop = bottom;
  }

  tell(text) {
    this.told.textContent = text;
  }

  #place(event) {
    const box = this.box.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  #point(event, at) {
    const text = at(...this.#place(event));
    this.tip.hidden = !text;
    if (!text) return;
    this.tip.textContent = text;
    const left = Math.min(event.clientX + 14, window.innerWidth - this.tip.offsetWidth - 8);
    Object.assign(this.tip.style, { left: `${Math.max(4, left)}px`, top: `${event.clientY + 18}px` });
  }
}

/** The end of a text that fits; the end of a path tells most. */
const fitted = (pen, text, width) => {
  if (pen.measureText(text).width <= width) return text;
  let [low, high] = [0, text.length];
  while (low < high) {
    const cut = (low + high) >> 1;
    if (pen.measureText(`…${text.slice(cut)}`).width <= width) high = cut;
    else low = cut + 1;
  }
  return `…${text.slice(low)}`;
};

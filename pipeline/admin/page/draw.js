// Making elements, and canvases that are sharp and follow the colours of the page.

const SVG = "http://www.w3.org/2000/svg";

export function set(element, attributes, ...children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export const svg = (tag, attributes = {}, ...children) =>
  set(document.createElementNS(SVG, tag), attributes, ...children);

export const html = (tag, attributes = {}, ...children) =>
  set(document.createElement(tag), attributes, ...children);

/** Sets a text only if it is another one: twice a second most are not. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const dark = matchMedia("(prefers-color-scheme: dark)");
const canvases = new Set();

/** The page's colours by name, e.g. colours().ink; read again when the scheme changes. */
export const colours = (() => {
  let known = null;
  dark.addEventListener("change", () => {
    known = null;
    for (const canvas of canvases) canvas.redraw();
  });
  return () => known ??= new Proxy({}, {
    get: (cache, name) => cache[name] ??= getComputedStyle(document.documentElement)
      .getPropertyValue(`--${name}`).trim(),
  });
})();

/** A canvas that fills `parent`'s width. `paint(context, width, height)` draws all of it. */
export class Canvas {
  constructor(parent, height, label, paint) {
    this.node = html("canvas", { role: "img", "aria-label": label });
    parent.replaceChildren(this.node);
    this.paint = paint;
    this.height = height;
    this.width = 0;
    canvases.add(this);
    new ResizeObserver(([entry]) => {
      this.width = Math.floor(entry.contentRect.width);
      this.redraw();
    }).observe(parent);
  }

  redraw() {
    if (!this.width) return;
    const height = typeof this.height === "function" ? this.height(this.width) : this.height;
    const scale = devicePixelRatio || 1;
    const [w, h] = [Math.round(this.width * scale), Math.round(height * scale)];
    if (this.node.width !== w || this.node.height !== h) {
      this.node.width = w;
      this.node.height = h;
      this.node.style.height = `${height}px`;
    }
    const context = this.node.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, this.width, height);
    context.font = `11px ${getComputedStyle(document.body).fontFamily}`;
    this.paint(context, this.width, height);
  }

  describe(label) {
    if (this.node.getAttribute("aria-label") !== label) this.node.setAttribute("aria-label", label);
  }
}

/** The least round number that is not below `value`: the top of an axis. */
export function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1e-9)));
  return power * ([1, 1.5, 2, 3, 4, 5, 6, 8].find((step) => step * power >= value) ?? 10);
}

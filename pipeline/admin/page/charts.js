// The canvases: latest steps, KV blocks, and times over the last two minutes.

import { Canvas, ceiling, colours, say } from "./draw.js";
import { percent, short, tick, time } from "./format.js";
import { ENDINGS } from "./swaps.js";

const GUTTER = 46;

function grid(context, top, height, width, label, half) {
  const { line, muted } = colours();
  context.strokeStyle = line;
  context.fillStyle = muted;
  context.textAlign = "right";
  context.textBaseline = "middle";
  context.lineWidth = 1;
  context.beginPath();
  for (const [share, text] of [[0, label], [0.5, half], [1, "0"]]) {
    const y = Math.round(top + share * height) + 0.5;
    context.moveTo(GUTTER, y);
    context.lineTo(width, y);
    context.fillText(text, GUTTER - 7, y);
  }
  context.stroke();
}

function nothing(context, width, height, text) {
  context.font = context.font.replace("11px", "12.5px");
  context.fillStyle = colours().muted;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(text, width / 2, height / 2);
}

/** Tokens of each step above, on a square-root scale; its time on the device and the host gap before it below. */
export class StepChart {
  constructor(parent) {
    this.columns = null;
    this.canvas = new Canvas(parent, 214, "Tokens and time of the latest steps: none yet", (...args) => this.paint(...args));
  }

  reset(steps) {
    this.columns = steps;
    this.canvas.redraw();
  }

  add(steps) {
    const last = this.columns?.id.at(-1) ?? 0;
    const known = steps.id.filter((id) => id <= last).length; // told by the backlog already
    if (known === steps.id.length) return;
    const merged = {};
    for (const name of Object.keys(steps)) {
      merged[name] = [...(this.columns?.[name] ?? []), ...steps[name].slice(known)].slice(-96);
    }
    this.reset(merged);
  }

  paint(context, width, height) {
    const { columns } = this;
    if (!columns?.id.length) return nothing(context, width, height, "No step yet: the device is idle.");
    const shown = Math.min(columns.id.length, Math.max(24, Math.floor((width - GUTTER) / 7)));
    const from = columns.id.length - shown;
    const last = (name) => columns[name].slice(from);
    const [prefill, decode, device, gap] = ["prefill", "decode", "device_us", "gap_us"].map(last);
    const slot = (width - GUTTER) / Math.max(shown, 24);
    const lanes = [{ top: 10, size: 110 }, { top: 146, size: 60 }];
    const most = ceiling(Math.max(...prefill.map((tokens, i) => tokens + decode[i]), 1));
    const longest = ceiling(Math.max(...device.map((us, i) => us + gap[i]), 1));
    grid(context, lanes[0].top, lanes[0].size, width, short(most), short(most / 4));
    grid(context, lanes[1].top, lanes[1].size, width, tick(longest), tick(longest / 2));
    const stack = ({ top, size }, height, lower, upper, lowerColour, upperColour) => lower.forEach((value, i) => {
      const x = GUTTER + i * slot + 1;
      const low = height(value) * size;
      const high = height(value + upper[i]) * size;
      context.fillStyle = upperColour;
      context.fillRect(x, top + size - high, slot - 1.5, high - low);
      context.fillStyle = lowerColour;
      context.fillRect(x, top + size - low, slot - 1.5, low);
    });
    const { prefill: p, decode: d, device: on, gap: off, muted } = colours();
    stack(lanes[0], (tokens) => Math.sqrt(tokens / most), decode, prefill, d, p); // a decode row beside a prompt shows
    stack(lanes[1], (us) => us / longest, device, gap, on, off);
    context.fillStyle = muted;
    context.textAlign = "left";
    context.textBaseline = "alphabetic";
    context.fillText("time on the device, and the host gap before it", GUTTER, lanes[1].top - 8);
    this.describe(prefill, decode, device, gap);
  }

  describe(prefill, decode, device, gap) {
    const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
    this.canvas.describe(`The latest ${prefill.length} steps: on average ${short(mean(prefill))} prefill and `
      + `${short(mean(decode))} decode tokens, ${time(mean(device))} on the device, ${time(mean(gap))} host gap`);
  }
}

const LEAST_PX = 5;
const MAP_PX = 200;

/** One square a block, or a few blocks where there are many. */
export class BlockChart {
  constructor(parent, note) {
    this.note = note;
    this.map = null;
    say(note, "Shown once the device is ready.");
    this.canvas = new Canvas(parent, (width) => this.layout(width).height, "KV blocks", (...args) => this.paint(...args));
  }

  show(map) {
    if (!map) return;
    this.map = map;
    this.canvas.redraw();
  }

  /** Squares that fill about 200 pixels of height; where they would be too small, several cells share one. */
  layout(width) {
    const count = this.map?.used.length ?? 1;
    const most = Math.max(1, Math.floor(width / LEAST_PX) * Math.floor(MAP_PX / LEAST_PX));
    const merged = Math.ceil(count / most);
    const squares = Math.ceil(count / merged);
    const size = Math.max(LEAST_PX, Math.min(14, Math.floor(Math.sqrt(width * MAP_PX / squares))));
    const columns = Math.max(1, Math.floor(width / size));
    return { merged, squares, size, columns, height: Math.max(60, Math.ceil(squares / columns) * size) };
  }

  describe(blocks) {
    const { num_used: some, num_blocks: all, num_shared: shared, num_cached: cached } = this.map;
    const each = blocks > 1 ? ` A square is ${blocks} blocks.` : "";
    const more = shared || cached ? ` Of these ${short(shared)} shared; ${short(cached)} of the free ones cached.` : "";
    say(this.note, `${short(some)} of ${short(all)} used, ${percent(some / all)}.${more}${each}`);
    this.canvas.describe(`KV blocks: ${this.note.textContent}`);
  }

  paint(context, width) {
    if (!this.map) return;
    const { merged, squares, size, columns } = this.layout(width);
    this.describe(merged * this.map.blocks_per_cell);
    const inset = size > 6 ? 2 : 1;
    for (let i = 0; i < squares; i++) {
      const [x, y] = [(i % columns) * size, Math.floor(i / columns) * size];
      const fill = (colour, alpha) => {
        context.globalAlpha = alpha;
        context.fillStyle = colour;
        context.fillRect(x, y, size - inset, size - inset);
      };
      fill(colours().free, 1);
      for (const state of ["cached", "used", "shared"]) {
        const cells = this.map[state].slice(i * merged, (i + 1) * merged);
        const level = Math.ceil([...cells].reduce((sum, digit) => sum + Number(digit), 0) / cells.length);
        if (level) fill(colours()[state], 0.25 + 0.75 * level / 9);
      }
    }
    context.globalAlpha = 1;
  }
}

const SPAN_US = 120e6;

/** A broken line at `x`, and a wedge where it meets the time axis. */
function mark(context, x, top, bottom, colour) {
  context.strokeStyle = colour;
  context.fillStyle = colour;
  context.lineWidth = 1;
  context.setLineDash([3, 3]);
  context.beginPath();
  context.moveTo(Math.round(x) + 0.5, top);
  context.lineTo(Math.round(x) + 0.5, bottom);
  context.stroke();
  context.setLineDash([]);
  context.beginPath();
  context.moveTo(x + 0.5, bottom);
  context.lineTo(x - 3.5, bottom + 7);
  context.lineTo(x + 4.5, bottom + 7);
  context.fill();
}

/** The middle of each moment as a dot, up to its worst as a line; a broken line where a stage was swapped. */
export class TimeChart {
  constructor(parent, note, field, what, swaps) {
    Object.assign(this, { note, field, what, swaps, moments: [] });
    this.canvas = new Canvas(parent, 190, `${what}: nothing yet`, (...args) => this.paint(...args));
  }

  reset(moments) {
    this.moments = moments;
    this.show();
  }

  add(moment) {
    this.now = moment.at_us;
    this.moments.push(moment);
    while (this.moments.length && this.moments[0].at_us < this.now - SPAN_US) this.moments.shift();
    this.show();
  }

  show() {
    const spreads = this.moments.map((moment) => moment[this.field]).filter(Boolean);
    const last = spreads.at(-1);
    say(this.note, last ? `${time(last.p50_us)} median, ${time(last.worst_us)} worst` : "");
    const count = this.marked().length;
    const marks = count ? `; ${count} ${count === 1 ? "swap" : "swaps"} of stages` : "";
    this.canvas.describe(`${this.what}: ${last ? this.note.textContent : "nothing in two minutes"}${marks}`);
    this.last = last ?? null;
    this.canvas.redraw();
  }

  /** The swaps of these two minutes. */
  marked() {
    return this.swaps.all.filter(({ at_us }) => at_us > this.now - SPAN_US);
  }

  paint(context, width, height) {
    const points = this.moments.filter((moment) => moment[this.field]);
    const marked = this.marked();
    if (!points.length && !marked.length) return nothing(context, width, height, "Nothing in the last two minutes.");
    const top = 10;
    const size = height - top - 24;
    const now = this.now ?? points.at(-1).at_us;
    const x = (at_us) => width - 3 - (now - at_us) / SPAN_US * (width - GUTTER - 6);
    const most = ceiling(Math.max(...points.map((moment) => moment[this.field].worst_us), 1));
    grid(context, top, size, width, tick(most), tick(most / 2));
    const { ink2, dot, muted } = colours();
    const y = (us) => top + size - us / most * size;
    for (const moment of points) {
      const { p50_us, worst_us } = moment[this.field];
      const at = x(moment.at_us);
      if (at < GUTTER) continue;
      context.fillStyle = ink2;
      context.fillRect(at - 1, y(worst_us), 2, Math.max(1, y(p50_us) - y(worst_us)));
      context.fillStyle = dot;
      context.fillRect(at - 2, y(p50_us) - 1.5, 4, 3);
    }
    for (const { at_us, ending } of marked) mark(context, x(at_us), top, top + size, colours()[ENDINGS[ending].colour]);
    context.fillStyle = muted;
    context.textBaseline = "alphabetic";
    context.textAlign = "left";
    context.fillText("2 min ago", GUTTER, height - 4);
    context.textAlign = "right";
    context.fillText("now", width, height - 4);
  }
}

// Where stages and links of the picture lie: on one wide sheet, or one below the other.

import { between, further, furtherBoxes, joined, rowsAbove, rowsBelow } from "./further.js";
import { box, through } from "./shapes.js";

const TOP = ["ingress", "tokenize", "schedule", "execute", "sample"];
const BELOW = { stream: 0, detokenize: 2 };

/** For a sheet `width` wide and the names and links of a graph:
 *  {height, boxes, cycle, ends, links: {"a>b data": {path, label: [x, y, anchor]}}}. */
export const places = (width, topology) => width >= 1000 ? wide(width, topology) : narrow(width, topology);

function wide(width, topology) {
  const others = further(topology);
  const [edge, gap, h, space] = [56, Math.max(42, width * 0.045), 112, 62];
  const top = 44 + rowsAbove(others) * (h + space);
  const w = (width - edge - 2 - 4 * gap) / 5;
  const low = top + h + space;
  const column = (i) => edge + i * (w + gap);
  const boxes = furtherBoxes(others, column, { top, low, w, h, step: h + space });
  TOP.forEach((name, i) => boxes[name] = box(column(i), top, w, h));
  for (const [name, i] of Object.entries(BELOW)) boxes[name] = box(column(i), low, w, h);
  const { ingress: i, tokenize: t, schedule: s, execute: e, sample: m, detokenize: d, stream: o } = boxes;
  const mid = low - space / 2;
  const links = {};
  for (const [a, b] of joined(topology)) links[`${a}>${b} data`] = between(boxes[a], boxes[b]);
  return {
    height: low + h + 4 + rowsBelow(others) * (h + space),
    boxes,
    cycle: { ...box(e.x, low, m.right - e.x, h), columns: 4 },
    ends: [
      { path: through([4, i.cy], [i.x - 5, i.cy]), label: "clients", at: [4, i.cy - 8] },
      { path: through([o.x - 3, o.cy], [6, o.cy]), label: "text", at: [4, o.cy - 8] },
    ],
    links: {
      ...links,
      "tokenize>schedule control": { path: through([t.right + 3, t.cy + 26], [s.x - 5, s.cy + 26]) },
      "execute>schedule control": { path: through([e.x - 3, e.cy + 26], [s.right + 5, s.cy + 26]) },
      "sample>schedule control": {
        path: through([m.cx, m.y - 3], [m.cx, top - 30], [s.cx + 34, top - 30], [s.cx + 34, s.y - 5]),
        label: [e.cx, top - 34, "middle"],
      },
      "ingress>schedule control": {
        path: through([i.cx, i.y - 3], [i.cx, top - 22], [s.cx - 34, top - 22], [s.cx - 34, s.y - 5]),
      },
      "ingress>stream control": { path: through([i.cx, i.bottom + 3], [o.cx, o.y - 5]) },
      "schedule>detokenize data": {
        path: through([s.cx, s.bottom + 3], [d.cx, d.y - 5]),
        label: [s.cx + 10, mid + 4, "start"],
      },
      "detokenize>schedule control": {
        path: through([d.right - 26, d.y - 3], [s.right - 26, s.bottom + 5]),
      },
      "stream>schedule control": {
        path: through([o.right - 44, o.y - 3], [o.right - 44, mid - 5], [s.x + 24, mid - 5], [s.x + 24, s.bottom + 5]),
      },
      "schedule>stream control": {
        path: through([s.x + 44, s.bottom + 3], [s.x + 44, mid + 9], [o.right - 24, mid + 9], [o.right - 24, o.y - 5]),
      },
    },
  };
}

function narrow(width, topology) {
  const [left, right, h, gap, top] = [22, 34, 86, 30, 8];
  const boxes = {};
  topology.stages.forEach((name, i) => boxes[name] = box(left, top + i * (h + gap), width - left - right, h));
  const { schedule: s, sample: m } = boxes;
  const links = {};
  const down = (a, b) => {
    const [from, to] = [boxes[a], boxes[b]];
    links[`${a}>${b} data`] = {
      path: through([from.cx, from.bottom + 2], [to.cx, to.y - 4]),
      label: [from.cx + 9, (from.bottom + to.y) / 2 + 4, "start"],
    };
  };
  const past = (a, b) => {
    const [from, to] = [boxes[a], boxes[b]];
    links[`${a}>${b} data`] = {
      path: through([from.x - 2, from.cy], [8, from.cy], [8, to.cy], [to.x - 5, to.cy]),
      label: [13, to.y - 8, "start"],
    };
  };
  const place = (name) => topology.stages.indexOf(name);
  for (const [a, b] of joined(topology)) place(b) === place(a) + 1 ? down(a, b) : past(a, b);
  const aside = (a, b, lane, dy) => {
    const [from, to] = [boxes[a], boxes[b]];
    const x = from.right + 8 + lane * 6;
    const up = to.y < from.y ? dy : -dy;
    links[`${a}>${b} control`] = {
      path: through([from.right + 2, from.cy - up], [x, from.cy - up], [x, to.cy + up], [to.right + 4, to.cy + up]),
    };
  };
  aside("tokenize", "schedule", 0, 26);
  aside("ingress", "schedule", 1, 34);
  aside("ingress", "stream", 4, 20);
  aside("execute", "schedule", 0, 26);
  aside("detokenize", "schedule", 2, 10);
  aside("stream", "schedule", 3, 2);
  aside("schedule", "stream", 3, 26);
  links["sample>schedule control"] = {
    path: through([m.right + 2, m.cy], [m.right + 14, m.cy], [m.right + 14, s.cy + 18], [s.right + 5, s.cy + 18]),
  };
  const last = boxes.stream;
  return {
    height: last.bottom + gap + 108,
    boxes,
    cycle: { ...box(left, last.bottom + gap, width - left - right, 104), columns: 4 },
    ends: [],
    links,
  };
}

// Where stages that a graph has besides the seven lie on the wide sheet, and the data links from and to them: those
// up to the step cycle above the seven, those after detokenize below, from right to left.

import { box, through } from "./shapes.js";

const SEVEN = ["ingress", "tokenize", "schedule", "execute", "sample", "detokenize", "stream"];

/** The pairs of stages that a data link joins. */
export const joined = ({ links }) =>
  links.filter(({ is_control }) => !is_control).map(({ source, target }) => [source, target]);

/** Names by group: `above` with the number of each one's place, `below` in data order. */
export function further({ stages }) {
  const place = (name) => stages.indexOf(name);
  const names = stages.filter((name) => !SEVEN.includes(name));
  const early = names.filter((name) => place(name) < place("schedule"));
  const cycle = names.filter((name) => place(name) > place("schedule") && place(name) < place("detokenize"));
  const above = [...early.map((name, i) => [name, i]), ...cycle.map((name, i) => [name, Math.max(2, early.length) + i])];
  return { above, below: names.filter((name) => place(name) > place("detokenize")) };
}

/** Rows that each group needs: four above in one, and below one alone finds its place between the others. */
export const rowsAbove = ({ above }) => above.length ? 1 + Math.floor(above.at(-1)[1] / 4) : 0;
export const rowsBelow = ({ below }) => below.length > 1 ? Math.ceil(below.length / 3) : 0;

/** Boxes by name; `column` gives the left edge of each of the five. */
export function furtherBoxes({ above, below }, column, { top, low, w, h, step }) {
  const boxes = {};
  for (const [name, i] of above) boxes[name] = box(column(1 + i % 4), top - step * (1 + Math.floor(i / 4)), w, h);
  if (below.length === 1) boxes[below[0]] = box(column(1), low, w, h);
  else below.forEach((name, i) => boxes[name] = box(column(2 - i % 3), low + step * (1 + Math.floor(i / 3)), w, h));
  return boxes;
}

/** The link between two boxes. */
export function between(a, b) {
  if (a.y === b.y) {
    const [left, right] = a.x < b.x ? [a, b] : [b, a];
    const ends = a.x < b.x ? [[a.right + 3, a.cy], [b.x - 5, b.cy]] : [[a.x - 3, a.cy], [b.right + 5, b.cy]];
    return { path: through(...ends), label: [(left.right + right.x) / 2, a.cy - 8, "middle"] };
  }
  const isDown = a.y < b.y;
  const [from, to] = isDown ? [a.bottom + 3, b.y - 5] : [a.y - 3, b.bottom + 5];
  if (Math.abs(a.cx - b.cx) < 1) return { path: through([a.cx, from], [b.cx, to]) };
  const isRight = a.cx < b.cx;
  return isDown === isRight // out of the side and into the next row; or out of this row and into the side
    ? { path: through([isRight ? a.right + 3 : a.x - 3, a.cy], [b.cx - 16, a.cy], [b.cx - 16, to]) }
    : { path: through([a.cx + 16, from], [a.cx + 16, b.cy], [isRight ? b.x - 5 : b.right + 5, b.cy]) };
}

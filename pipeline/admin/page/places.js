// Where stages and links of the picture lie: on one wide sheet, or one below the other. Stages that a graph has
// besides the seven lie below them, or, where there is one between detokenize and stream, there.

const TOP = ["ingress", "tokenize", "schedule", "execute", "sample"];
const BELOW = { stream: 0, detokenize: 2 };
const R = 9;

const box = (x, y, w, h) => ({ x, y, w, h, right: x + w, bottom: y + h, cx: x + w / 2, cy: y + h / 2 });

/** A path through points with rounded corners. */
function through(...points) {
  let path = `M${points[0].join(" ")}`;
  for (let i = 1; i < points.length; i++) {
    const [from, at, to] = [points[i - 1], points[i], points[i + 1]];
    if (!to) return `${path}L${at.join(" ")}`;
    const before = toward(at, from);
    const after = toward(at, to);
    path += `L${before.join(" ")}Q${at.join(" ")} ${after.join(" ")}`;
  }
  return path;
}

function toward([x, y], [tx, ty]) {
  const length = Math.hypot(tx - x, ty - y) || 1;
  const step = Math.min(R, length / 2) / length;
  return [x + (tx - x) * step, y + (ty - y) * step];
}

/** For a sheet `width` wide and the names and links of a graph:
 *  {height, boxes, cycle, ends, links: {"a>b data": {path, label: [x, y, anchor]}}}. */
export const places = (width, topology) => width >= 1000 ? wide(width, topology) : narrow(width, topology);

/** The pairs of stages that a data link joins. */
const joined = ({ links }) => links.filter(({ is_control }) => !is_control).map(({ source, target }) => [source, target]);

function wide(width, topology) {
  const [edge, gap, top, h, between] = [56, Math.max(42, width * 0.045), 44, 112, 62];
  const w = (width - edge - 2 - 4 * gap) / 5;
  const low = top + h + between;
  const boxes = {};
  TOP.forEach((name, i) => boxes[name] = box(edge + i * (w + gap), top, w, h));
  for (const [name, i] of Object.entries(BELOW)) boxes[name] = box(edge + i * (w + gap), low, w, h);
  const further = topology.stages.filter((name) => !boxes[name]);
  const [afterText] = joined(topology).filter(([a, b]) => a === "detokenize" && b !== "stream").map(([, b]) => b);
  const isBetween = afterText && joined(topology).some(([a, b]) => a === afterText && b === "stream");
  if (isBetween) boxes[afterText] = box(edge + w + gap, low, w, h);
  const rest = further.filter((name) => !boxes[name]);
  rest.forEach((name, i) =>
    boxes[name] = box(edge + (i % 5) * (w + gap), low + (1 + Math.floor(i / 5)) * (h + between), w, h));
  const { ingress: i, tokenize: t, schedule: s, execute: e, sample: m, detokenize: d, stream: o } = boxes;
  const mid = low - between / 2;
  const across = (a, b) => ({
    path: through([a.right + 3, a.cy], [b.x - 5, b.cy]),
    label: [(a.right + b.x) / 2, a.cy - 8, "middle"],
  });
  const back = (a, b) => ({
    path: through([a.x - 3, a.cy], [b.right + 5, b.cy]),
    label: [(a.x + b.right) / 2, a.cy - 8, "middle"],
  });
  const links = {};
  for (const [a, b] of joined(topology)) {
    const [from, to] = [boxes[a], boxes[b]];
    if (from.y === low && to.y === low) links[`${a}>${b} data`] = back(from, to);
    else if (further.includes(a) || further.includes(b)) {
      const isDown = from.y < to.y;
      links[`${a}>${b} data`] = {
        path: from.y === to.y ? across(from, to).path
          : through([from.cx, isDown ? from.bottom + 3 : from.y - 3], [to.cx, isDown ? to.y - 5 : to.bottom + 5]),
      };
    }
  }
  return {
    height: low + h + 4 + Math.ceil(rest.length / 5) * (h + between),
    boxes,
    cycle: { ...box(e.x, low, m.right - e.x, h), columns: 4 },
    ends: [
      { path: through([4, i.cy], [i.x - 5, i.cy]), label: "clients", at: [4, i.cy - 8] },
      { path: through([o.x - 3, o.cy], [6, o.cy]), label: "text", at: [4, o.cy - 8] },
    ],
    links: {
      ...links,
      "ingress>tokenize data": across(i, t),
      "tokenize>schedule data": across(t, s),
      "tokenize>schedule control": { path: through([t.right + 3, t.cy + 26], [s.x - 5, s.cy + 26]) },
      "schedule>execute data": across(s, e),
      "execute>schedule control": { path: through([e.x - 3, e.cy + 26], [s.right + 5, s.cy + 26]) },
      "execute>sample data": across(e, m),
      "sample>schedule control": {
        path: through([m.cx, m.y - 3], [m.cx, 14], [s.cx + 34, 14], [s.cx + 34, s.y - 5]),
        label: [e.cx, 10, "middle"],
      },
      "ingress>schedule control": {
        path: through([i.cx, i.y - 3], [i.cx, 22], [s.cx - 34, 22], [s.cx - 34, s.y - 5]),
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

// Boxes, and paths with rounded corners, of the picture.

const R = 9;

export const box = (x, y, w, h) => ({ x, y, w, h, right: x + w, bottom: y + h, cx: x + w / 2, cy: y + h / 2 });

/** A path through points with rounded corners. */
export function through(...points) {
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

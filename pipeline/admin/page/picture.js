// The pipeline drawn as stages and links, with what each does now. Built once per width; then only texts move.

import { percent, rate, short, time } from "./format.js";
import { say, set, svg } from "./draw.js";
import { places } from "./places.js";

const QUEUES = { ingress: "live", schedule: "waiting" };
const LEVELS = [0.05, 0.5, 0.85];
const use = (busy) => LEVELS.filter((level) => busy >= level).length;

export class Picture {
  /** `detail` is the line that says more of the stage under the pointer or the focus. */
  constructor(parent, detail) {
    this.parent = parent;
    this.detail = detail;
    this.stages = {};
    this.chosen = null;
    new ResizeObserver(([entry]) => this.fit(Math.floor(entry.contentRect.width))).observe(parent);
    this.explain();
  }

  about(about) {
    this.topology = about;
    this.width && this.build();
  }

  fit(width) {
    if (width === this.width || width < 200) return; // before the style is there a sheet has no width
    this.width = width;
    this.topology && this.build();
  }

  build() {
    const place = places(this.width, this.topology);
    const focused = document.activeElement?.dataset?.stage;
    this.root = svg("svg", {
      viewBox: `0 0 ${this.width} ${place.height}`, width: this.width, height: place.height,
      role: "group", "aria-label": "The stages of the pipeline and the links between them",
    }, arrowheads());
    this.links = {};
    for (const end of place.ends) this.addEnd(end);
    for (const [key, link] of this.joined()) this.addLink(key, link, place.links[key]);
    this.stages = {};
    this.topology.stages.forEach((name) => this.addStage(name, place.boxes[name]));
    this.addCycle(place.cycle);
    this.parent.replaceChildren(this.root);
    if (focused) this.stages[focused]?.group.focus();
    if (this.last) this.show(this.last);
  }

  /** Links by "source>target lane": several messages may share one. */
  joined() {
    const links = new Map();
    for (const { source, target, carries, is_control } of this.topology.links) {
      const key = `${source}>${target} ${is_control ? "control" : "data"}`;
      const link = links.get(key) ?? { source, target, is_control, carries: [] };
      link.carries.push(carries);
      links.set(key, link);
    }
    return links;
  }

  addLink(key, link, place) {
    if (!place) return;
    const isCycle = key === "sample>schedule control";
    const kind = link.is_control && !isCycle ? "control" : "data";
    const path = svg("path", { d: place.path, class: `link ${kind}`, "marker-end": `url(#arrow-${kind})` });
    path.append(svg("title"));
    path.firstChild.textContent = `${link.source} to ${link.target}: ${link.carries.join(", ")}`;
    this.root.append(path);
    if (kind === "control") return;
    const label = svg("text", { class: "link-rate" });
    if (place.label) {
      const [x, y, anchor] = place.label;
      this.root.append(set(label, { x, y, "text-anchor": anchor }));
    }
    this.links[key] = { path, label, source: link.source, target: link.target, isCycle };
  }

  addEnd({ path, label, at: [x, y] }) {
    const text = svg("text", { x, y, class: "link-rate" });
    text.textContent = label;
    this.root.append(svg("path", { d: path, class: "link data", "marker-end": "url(#arrow-data)" }), text);
  }

  addStage(name, at) {
    const group = svg("g", { class: "stage", tabindex: 0, role: "img", "data-stage": name, "data-use": 0 });
    const isLow = at.h < 100;
    const text = (x, y, kind, anchor = "start") => {
      const node = svg("text", { x, y, class: kind, "text-anchor": anchor });
      group.append(node);
      return node;
    };
    const [left, inner] = [at.x + 24, at.w - 36];
    group.append(
      svg("rect", { x: at.x, y: at.y, width: at.w, height: at.h, rx: 9, class: "body" }),
      svg("rect", { x: at.x + 10, y: at.y + 12, width: 5, height: at.h - 24, rx: 2.5, class: "track" }),
    );
    const queue = svg("rect", { x: at.x + 10, y: at.bottom - 12, width: 5, height: 0, rx: 2.5, class: "queue" });
    const swatch = svg("rect", { x: left, y: at.y + 14, width: 9, height: 9, rx: 2, class: `fill-${name}` });
    const length = inner - 54;
    const track = svg("rect", { x: left, y: at.y + 33, width: length, height: 5, rx: 2.5, class: "track" });
    const busy = svg("rect", { x: left, y: at.y + 33, width: 0, height: 5, rx: 2.5, class: "busy" });
    group.append(queue, swatch, track, busy);
    text(left + 15, at.y + 23, "name").textContent = name;
    const share = text(at.right - 12, at.y + 40, "share", "end");
    const cells = {};
    ["queue", "rate", "wait", "service"].forEach((label, i) => {
      const x = left + inner * (isLow ? [0, 0.325, 0.55, 0.79][i] : [0, 0.6][i % 2]);
      const y = at.y + (isLow ? 58 : 56 + Math.floor(i / 2) * 31);
      text(x, y, "caption").textContent = label === "queue" ? QUEUES[name] ?? label : label;
      cells[label] = text(x, y + 15, "value");
    });
    const show = () => { this.chosen = name; this.explain(); };
    group.addEventListener("pointerenter", show);
    group.addEventListener("focus", show);
    this.root.append(group);
    this.stages[name] = { group, queue, busy, share, cells, at, length };
  }

  addCycle(at) {
    const group = svg("g", { class: "cycle" });
    group.append(svg("rect", { x: at.x + 0.5, y: at.y + 0.5, width: at.w - 1, height: at.h - 1, rx: 9 }));
    const names = ["steps", "device", "host gap", "loop CPU", "running", "waiting", "prefill tok", "decode tok"];
    const cells = names.map((label, i) => {
      const x = at.x + 16 + (i % at.columns) * (at.w - 24) / at.columns;
      const y = at.y + 50 + Math.floor(i / at.columns) * 32 - (at.h < 110 ? 4 : 0);
      const [caption, value] = [svg("text", { x, y, class: "caption" }), svg("text", { x, y: y + 15, class: "value" })];
      caption.textContent = label;
      group.append(caption, value);
      return value;
    });
    const title = svg("text", { x: at.x + 16, y: at.y + 24, class: "name" });
    title.textContent = "Step cycle";
    group.append(title);
    this.cycle = cells;
    this.root.append(group);
  }

  show(snapshot) {
    this.last = snapshot;
    if (!this.root) return;
    for (const stage of snapshot.stages) this.showStage(stage);
    const byName = Object.fromEntries(snapshot.stages.map((stage) => [stage.name, stage]));
    const links = Object.values(this.links);
    for (const { path, label, source, target, isCycle } of links) {
      const isOnly = links.filter((link) => link.target === target && !link.isCycle).length === 1;
      const perS = isCycle ? snapshot.totals.steps_per_s
        : isOnly ? Math.max(0, byName[target].per_s - byName[target].posted_per_s)
        : byName[source].per_s; // an inbox does not say who sent how much of what is in it
      say(label, perS ? rate(perS) : "");
      path.classList.toggle("active", perS > 0);
    }
    const { totals } = snapshot;
    [
      rate(totals.steps_per_s), time(totals.step_us), time(totals.gap_us), percent(totals.loop_cpu),
      short(totals.running), short(totals.waiting), rate(totals.prefill_per_s), rate(totals.decode_per_s),
    ].forEach((text, i) => say(this.cycle[i], text));
    this.explain();
  }

  showStage(stage) {
    const { group, queue, busy, share, cells, at, length } = this.stages[stage.name];
    const full = Math.min(1, stage.depth / (stage.bound || 1)) * (at.h - 24);
    queue.setAttribute("height", full.toFixed(1));
    queue.setAttribute("y", (at.bottom - 12 - full).toFixed(1));
    busy.setAttribute("width", (stage.busy * length).toFixed(1));
    group.dataset.use = use(stage.busy);
    say(share, percent(stage.busy));
    say(cells.queue, `${stage.depth}/${stage.bound}`);
    say(cells.rate, rate(stage.per_s));
    say(cells.wait, time(stage.wait_us));
    say(cells.service, time(stage.service_us));
    group.setAttribute("aria-label", `${stage.name}: ${percent(stage.busy)} busy, queue ${stage.depth} of ${stage.bound}, `
      + `${rate(stage.per_s)}, wait ${time(stage.wait_us)}, service ${time(stage.service_us)}`);
  }

  explain() {
    const stage = this.last?.stages.find(({ name }) => name === this.chosen);
    if (!stage) {
      say(this.detail, "The bar on the left of a stage is its queue, the one below its name how busy it is."
        + " Point at a stage, or move to it with Tab, for more.");
      return;
    }
    const more = [
      `${stage.workers} ${stage.workers === 1 ? "worker" : "workers"}`,
      stage.batch === null ? "no batch of late" : `batches of ${short(stage.batch)}`,
      `${rate(stage.posted_per_s)} control messages`,
      `longest queue so far ${stage.peak}`,
      `${rate(stage.refused_per_s)} refused`,
      stage.blocked ? `${short(stage.blocked)} senders wait for room` : "no sender waits for room",
    ];
    say(this.detail, `${stage.name}: ${more.join(" \u00b7 ")}`);
  }
}

function arrowheads() {
  const head = (kind, size) => {
    const marker = svg("marker", {
      id: `arrow-${kind}`, viewBox: "0 0 8 8", refX: 5, refY: 4,
      markerWidth: size, markerHeight: size, orient: "auto", markerUnits: "userSpaceOnUse",
    });
    marker.append(svg("path", { d: "M0 0.5L7 4L0 7.5Z", class: `head ${kind}` }));
    return marker;
  };
  return svg("defs", {}, head("data", 9), head("control", 7));
}

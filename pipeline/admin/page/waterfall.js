// Requests as bars of their segments. Up to the first token, then after it: what came before it made the TTFT.

import { say, svg, html } from "./draw.js";
import { short, time } from "./format.js";

const SCALE = 1000;
const LEAST = 0.0015;

const part = (name) => {
  const [stage, kind] = name.split(".");
  return { stage, kind };
};

/** `request` as {e2e_us, ttft_us, segments_us, first_us}; its bar is `of` us long at full width. */
export function bar(request, names, of) {
  const root = svg("svg", { viewBox: `0 0 ${SCALE} 16`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const first = request.first_us.length ? request.first_us : request.segments_us.map(() => 0);
  let x = 0;
  const add = (values) => values.forEach((us, i) => {
    const width = us / of * SCALE;
    if (width >= LEAST * SCALE) {
      const { stage, kind } = part(names[i]);
      root.append(svg("rect", { x: x.toFixed(2), y: 0, width: width.toFixed(2), height: 16, class: `fill-${stage} ${kind}` }));
    }
    x += width;
  });
  add(first);
  const marker = x;
  add(request.segments_us.map((us, i) => Math.max(0, us - first[i])));
  if (request.first_us.length) {
    root.append(svg("path", { d: `M${marker.toFixed(2)} -2V18`, class: "first-token" }));
  }
  return root;
}

/** The thirteen numbers, by stage. */
export function breakdown(parent, request, names) {
  if (!request) {
    parent.replaceChildren();
    return;
  }
  const stages = new Map();
  names.forEach((name, i) => {
    const { stage, kind } = part(name);
    const row = stages.get(stage) ?? {};
    row[kind] = request.segments_us[i];
    stages.set(stage, row);
  });
  const tpot = request.ttft_us !== null && request.output > 1
    ? (request.e2e_us - request.ttft_us) / (request.output - 1) : null;
  const head = html("p", { class: "sum" });
  head.append(...[
    ["First token", time(request.ttft_us)], ["Each further", time(tpot)], ["Whole", time(request.e2e_us)],
    ["Prompt", short(request.prompt)], ["Output", short(request.output)], ["Ended by", request.finish],
    ...(request.preemptions ? [["Preempted", `${request.preemptions}\u00d7`]] : []),
  ].map(([label, value]) => {
    const item = html("span", {}, html("b"));
    item.prepend(`${label} `);
    item.lastChild.textContent = value;
    return item;
  }));
  const list = html("ul", { class: "parts" }, ...[...stages].map(([stage, { wait, service }]) => {
    const item = html("li", {}, html("span", { class: `key key-${stage}` }), html("strong"), html("span"), html("span"));
    say(item.children[1], stage);
    say(item.children[2], wait === undefined ? `service ${time(service)}` : `wait ${time(wait)}`);
    if (wait !== undefined) say(item.children[3], `service ${time(service)}`);
    return item;
  }));
  parent.replaceChildren(head, list);
}

/** The list of the latest requests; it holds still while somebody is in it. */
export class Waterfall {
  constructor(parent, detail, legend, max = 12) {
    Object.assign(this, { parent, detail, legend, max });
    this.requests = [];
    this.names = [];
    this.isHeld = false;
    this.chosen = null;
    this.list = html("ol", { class: "bars", "aria-label": "Latest requests, newest first" });
    this.empty = html("p", { class: "empty" });
    this.empty.textContent = "No request has ended yet. Send one from the playground, or start loadgen.";
    parent.replaceChildren(this.empty);
    const hold = (isHeld) => { this.isHeld = isHeld; isHeld || this.render(); };
    parent.addEventListener("pointerenter", () => hold(true));
    parent.addEventListener("pointerleave", () => hold(parent.contains(document.activeElement)));
    parent.addEventListener("focusin", () => hold(true));
    parent.addEventListener("focusout", ({ relatedTarget }) => parent.contains(relatedTarget) || hold(parent.matches(":hover")));
    this.list.addEventListener("keydown", (event) => this.move(event));
  }

  about({ segments, stages }) {
    this.names = segments;
    const named = stages.filter((stage) => segments.some((segment) => segment.startsWith(`${stage}.`)));
    this.legend.replaceChildren(...named.map((stage) => {
      const item = html("li", { class: `key-${stage}` });
      say(item, stage);
      return item;
    }), Object.assign(html("li", { class: "waits" }), { textContent: "pale: waiting" }),
    Object.assign(html("li", { class: "line first" }), { textContent: "first token" }));
  }

  reset() {
    this.requests = [];
    this.render();
  }

  add(requests) {
    const known = new Set(this.requests.map(({ id }) => id)); // by the backlog
    const fresh = requests.filter(({ id }) => !known.has(id));
    if (!fresh.length) return;
    this.requests = [...this.requests, ...fresh].slice(-this.max);
    this.isHeld || this.render();
  }

  render() {
    const shown = this.requests.slice(-this.max).reverse();
    if (!shown.length) {
      this.parent.replaceChildren(this.empty);
      return;
    }
    const longest = Math.max(...shown.map(({ e2e_us }) => e2e_us), 1);
    this.list.replaceChildren(...shown.map((request) => this.row(request, longest)));
    if (this.list.parentNode !== this.parent) this.parent.replaceChildren(this.list);
    this.choose(shown.find(({ id }) => id === this.chosen) ?? shown[0], false);
  }

  row(request, longest) {
    const row = html("button", { type: "button", "data-id": request.id, class: "bar" },
      html("span", { class: "who" }), html("span", { class: "long" }));
    say(row.firstChild, `#${request.id}`);
    if (request.segments_us.length) {
      row.insertBefore(bar(request, this.names, longest), row.lastChild);
    } else {
      const why = html("span", { class: "why" });
      say(why, `${request.finish}: ${request.code}`);
      row.insertBefore(why, row.lastChild);
    }
    say(row.lastChild, time(request.e2e_us));
    row.setAttribute("aria-label", `Request ${request.id}: ${request.prompt} prompt and ${request.output} output tokens, `
      + `first token ${time(request.ttft_us)}, whole ${time(request.e2e_us)}, ${request.finish}`);
    row.addEventListener("pointerenter", () => this.choose(request));
    row.addEventListener("focus", () => this.choose(request));
    return html("li", {}, row);
  }

  choose(request, isMeant = true) {
    if (isMeant) this.chosen = request.id;
    for (const row of this.list.querySelectorAll("button")) {
      const isIt = Number(row.dataset.id) === request.id;
      row.classList.toggle("chosen", isIt);
      row.tabIndex = isIt ? 0 : -1;
    }
    breakdown(this.detail, request.segments_us.length ? request : null, this.names);
  }

  /** One stop for Tab; arrows go through the rows. */
  move(event) {
    const rows = [...this.list.querySelectorAll("button")];
    const at = rows.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1 }[event.key];
    if (to === undefined || !rows[to]) return;
    event.preventDefault();
    rows[to].focus();
  }
}

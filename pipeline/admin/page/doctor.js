// The doctor's verdict over the last half minute, asked for while the page is looked at.

import { html, say } from "./draw.js";

const EVERY_MS = 30000; // a judgement costs the server some 50 ms

/** "Healthy: nothing holds ..." as its two halves. */
function halves(verdict) {
  const at = verdict.indexOf(": ");
  if (at < 0) return [verdict, ""];
  return [verdict.slice(0, at), sentence(verdict.slice(at + 2))];
}

const sentence = (words) => words.charAt(0).toUpperCase() + words.slice(1);

const text = (tag, content, attributes = {}) => {
  const node = html(tag, attributes);
  say(node, content);
  return node;
};

export class Doctor {
  constructor(parent, button) {
    this.parent = parent;
    button.addEventListener("click", () => this.ask());
    setInterval(() => document.hidden || this.ask(), EVERY_MS);
  }

  async ask() {
    try {
      const answer = await fetch("api/diagnosis?last_s=30");
      const body = await answer.json();
      if (answer.ok) this.show(body);
      else this.note(body.error.message);
    } catch {
      this.note("No answer from the server.");
    }
  }

  note(message) {
    this.last = null;
    this.parent.replaceChildren(text("p", message, { class: "empty" }));
  }

  show(diagnosis) {
    const same = JSON.stringify([diagnosis.verdict, diagnosis.findings]);
    if (same === this.last) return; // so that a screen reader is not told twice, nor a reader's place lost
    this.last = same;
    const [head, rest] = halves(diagnosis.verdict);
    const span = `Over the last ${Math.round(diagnosis.window_s)} s, ${diagnosis.num_requests} requests.`;
    this.parent.replaceChildren(
      text("p", head, { class: "judged", "data-state": diagnosis.state }),
      text("p", rest, { class: "sentence" }),
      ...diagnosis.findings.map(finding),
      ...diagnosis.laws.filter((law) => !law.holds).map((law) => text("p", `${law.name}: ${law.claim} ${law.why}`, { class: "note" })),
      text("p", span, { class: "note" }),
    );
  }
}

/** The first one is what the verdict names. */
function finding({ title, share, of, severity, evidence, advice, worse }, index) {
  const head = index === 0 ? html("summary", {}, text("strong", "Why, and what to change"))
    : html("summary", {}, text("strong", title), text("span", `${Math.round(share * 100)} % of ${of}`));
  const box = html("details", { class: `finding ${severity}` }, head, text("p", sentence(evidence)));
  if (advice.length) {
    box.append(html("dl", {}, ...advice.flatMap(({ setting, change }) => [text("dt", setting), text("dd", change)])));
  }
  if (worse) box.append(text("p", `What it costs: ${worse}`, { class: "note" }));
  box.open = index === 0;
  return box;
}

// Stages whose place another one was to take: the list of them, and what the charts over time mark.

import { html, say } from "./draw.js";
import { time } from "./format.js";

export const ENDINGS = {
  swapped: { word: "swapped", colour: "good" },
  rolled_back: { word: "rolled back", colour: "bad" },
  refused: { word: "refused", colour: "muted" },
};

const SHOWN = 10;

const text = (tag, attributes, content) => {
  const node = html(tag, attributes);
  say(node, content);
  return node;
};

/** The card is there from the first swap on. */
export class Swaps {
  constructor(card, list, legend) {
    Object.assign(this, { card, list, legend, all: [], drawn: 0 });
  }

  reset(swaps) {
    this.all = swaps;
    this.drawn = 0;
  }

  /** `now` is the server's clock, us, as in at_us. */
  add(swaps, now) {
    const known = new Set(this.all.map(({ at_us, stage }) => `${at_us} ${stage}`)); // by the backlog
    this.all = [...this.all, ...swaps.filter(({ at_us, stage }) => !known.has(`${at_us} ${stage}`))];
    if (this.all.length !== this.drawn) this.render(Date.now() - now / 1000);
  }

  render(epoch) {
    this.drawn = this.all.length;
    this.card.hidden = !this.all.length;
    this.legend.replaceChildren(...Object.entries(ENDINGS).map(([ending, { word }]) => {
      const count = this.all.filter((swap) => swap.ending === ending).length;
      return text("li", { "data-ending": ending }, `${count} ${word}`);
    }));
    this.list.replaceChildren(...this.all.slice(-SHOWN).reverse().map((swap) => row(swap, epoch)));
  }
}

function row({ at_us, stage, was, now, ending, reason, paused_us }, epoch) {
  const at = new Date(epoch + at_us / 1000);
  const classes = html("span", { class: "classes" }, text("code", {}, was), " \u2192 ", text("code", {}, now));
  const isTried = ending !== "refused";
  return html("li", { class: "event" },
    text("time", { datetime: at.toISOString() }, at.toLocaleTimeString("en-GB")),
    html("span", { class: "who" }, html("span", { class: `key key-${stage}` }), text("span", {}, stage)),
    classes,
    text("span", { class: "outcome", "data-ending": ending }, ENDINGS[ending].word),
    text("span", { class: "took" }, isTried ? `handed over in ${time(paused_us)}` : "not handed over"),
    ...(reason ? [text("span", { class: "why" }, reason)] : []),
  );
}

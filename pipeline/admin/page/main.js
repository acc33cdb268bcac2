// Puts the feed's readings where they belong.

import { BlockChart, StepChart, TimeChart } from "./charts.js";
import { Doctor } from "./doctor.js";
import { html, say } from "./draw.js";
import { Feed } from "./feed.js";
import { bytes, percent, rate, short, time } from "./format.js";
import { Picture } from "./picture.js";
import { Playground } from "./playground.js";
import { Swaps } from "./swaps.js";
import { Waterfall } from "./waterfall.js";

const byId = (id) => document.getElementById(id);

const picture = new Picture(byId("picture"), byId("stage-detail"));
const waterfall = new Waterfall(byId("waterfall"), byId("request-detail"), byId("segment-legend"));
const steps = new StepChart(byId("steps"));
const blocks = new BlockChart(byId("blocks"), byId("blocks-note"));
const swaps = new Swaps(byId("swaps"), byId("swaps-list"), byId("swaps-legend"));
const ttft = new TimeChart(byId("ttft"), byId("ttft-note"), "ttft", "Time to first token", swaps);
const itl = new TimeChart(byId("itl"), byId("itl-note"), "itl", "Time between tokens", swaps);
const playground = new Playground();
const doctor = new Doctor(byId("verdict"), byId("ask-doctor"));

const FIGURES = {
  Live: ({ totals }) => short(totals.live),
  "Requests ended": ({ totals }) => rate(totals.requests_per_s),
  Refused: ({ totals }) => rate(totals.refused_per_s),
  "Tokens decoded": ({ totals }) => rate(totals.decode_per_s),
  "First token": () => time(ttft.last?.p50_us),
  "Between tokens": () => time(itl.last?.p50_us),
  "KV used": () => blocks.map ? percent(blocks.map.num_used / blocks.map.num_blocks) : "\u2013",
  CPU: ({ totals }) => `${totals.cpu.toFixed(2)} cores`,
  "Loop lag": ({ totals }) => time(totals.loop_lag_us),
  Memory: ({ totals }) => bytes(totals.rss_bytes),
};

const figures = Object.entries(FIGURES).map(([name, read]) => {
  const value = html("dd");
  const term = html("dt");
  say(term, name);
  say(value, "\u2013");
  byId("figures").append(html("div", {}, term, value));
  return { value, read };
});

const STATES = {
  connecting: "Connecting", starting: "Starting", ready: "Live", draining: "Draining", lost: "Reconnecting",
};

function setState(state) {
  byId("state").dataset.state = state;
  say(byId("state"), STATES[state]);
}

let known = null;

new Feed({
  about(about) {
    // Another door: the server was started again. The page's policy names the door it may open, so ask anew.
    if (known && known.door !== about.door) {
      location.reload();
      return;
    }
    known = about;
    byId("lost").hidden = true;
    say(byId("model"), about.model);
    say(byId("version"), `Stageline ${about.version}`);
    document.title = `${about.model} \u00b7 Stageline`;
    for (const part of [picture, waterfall, playground]) part.about(about);
    doctor.ask();
  },

  backlog(backlog) {
    waterfall.reset();
    waterfall.add(backlog.requests);
    steps.reset(backlog.steps);
    swaps.reset(backlog.swaps);
    ttft.reset(backlog.moments);
    itl.reset([...backlog.moments]);
  },

  snapshot(snapshot) {
    if (snapshot.state === "ready" && known.has_door && !known.door) {
      location.reload();
      return;
    }
    setState(snapshot.state);
    swaps.add(snapshot.swaps, snapshot.moment.at_us);
    ttft.add(snapshot.moment);
    itl.add(snapshot.moment);
    blocks.show(snapshot.blocks);
    steps.add(snapshot.steps);
    waterfall.add(snapshot.requests);
    picture.show(snapshot);
    for (const { value, read } of figures) say(value, read(snapshot));
  },

  lost(retryMs) {
    setState("lost");
    say(byId("lost"), `The server does not answer at ${location.host}. It may have stopped or be restarting; `
      + `this page tries again by itself. What you see is from before.`);
    byId("lost").hidden = false;
  },
});

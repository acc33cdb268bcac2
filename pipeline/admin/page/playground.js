// The playground: one prompt at a time over the websocket door, and what became of it.

import { say } from "./draw.js";
import { time } from "./format.js";
import { bar, breakdown } from "./waterfall.js";

const byId = (id) => document.getElementById(id);

export class Playground {
  constructor() {
    this.form = byId("play");
    this.socket = null;
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.send(); });
    byId("prompt").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.form.requestSubmit();
      }
    });
    byId("playground").addEventListener("keydown", (event) => event.key === "Escape" && this.stop());
    byId("stop").addEventListener("click", () => this.stop());
    this.busy(false);
  }

  about(about) {
    this.names = about.segments;
    this.door = about.door;
    byId("playground").hidden = !about.has_door;
    byId("chat-choice").hidden = !about.has_chat;
    if (!about.has_chat) byId("as-chat").checked = false;
    this.busy(Boolean(this.socket));
  }

  busy(isBusy) {
    byId("send").disabled = isBusy || !this.door;
    byId("stop").disabled = !isBusy;
    byId("answer").setAttribute("aria-busy", isBusy);
  }

  send() {
    if (this.socket || !this.door || !this.form.reportValidity()) return;
    byId("answer").textContent = "";
    byId("play-waterfall").replaceChildren();
    breakdown(byId("play-detail"), null, this.names);
    say(byId("play-status"), "Connecting\u2026");
    const socket = this.socket = new WebSocket(`${this.door}/v1/stream`);
    this.busy(true);
    socket.onopen = () => {
      this.sentAt = performance.now();
      socket.send(JSON.stringify(this.request()));
      say(byId("play-status"), "Waiting for the first token\u2026");
    };
    socket.onmessage = (event) => this.take(JSON.parse(event.data));
    socket.onclose = () => this.end(`The door at ${this.door} closed the connection. `
      + "Through a tunnel, forward its port too.");
  }

  request() {
    const text = byId("prompt").value;
    const asked = byId("as-chat").checked ? { messages: [{ role: "user", content: text }] } : { prompt: text };
    return {
      type: "generate", id: "playground", timings: true, ...asked,
      max_tokens: byId("max-tokens").valueAsNumber, temperature: byId("temperature").valueAsNumber,
    };
  }

  take(frame) {
    if (frame.type === "delta") {
      this.append(frame.text);
      say(byId("play-status"), "Answering\u2026");
    } else if (frame.type === "done") {
      this.finish(frame);
    } else if (frame.type === "error") {
      this.end(frame.error.message);
    }
  }

  /** Follows the text, unless somebody has scrolled up to read. */
  append(text) {
    const answer = byId("answer");
    const isAtEnd = answer.scrollHeight - answer.scrollTop - answer.clientHeight < 24;
    answer.append(text);
    if (isAtEnd) answer.scrollTop = answer.scrollHeight;
  }

  finish({ finish_reason: finish, usage, timings }) {
    const us = (ms) => Math.round(ms * 1000);
    const request = {
      finish,
      prompt: usage.prompt_tokens,
      output: usage.completion_tokens,
      preemptions: 0,
      e2e_us: us(timings.e2e_ms),
      ttft_us: timings.ttft_ms === null ? null : us(timings.ttft_ms),
      segments_us: this.names.map((name) => us(timings.segments_ms[name])),
      first_us: timings.ttft_ms === null ? [] : this.names.map((name) => us(timings.ttft_segments_ms[name])),
    };
    byId("play-waterfall").replaceChildren(bar(request, this.names, Math.max(1, request.e2e_us)));
    breakdown(byId("play-detail"), request, this.names);
    const seen = time((performance.now() - this.sentAt) * 1000);
    this.end(finish === "cancelled" ? "Stopped." : `Done; ${seen} as this browser saw it.`);
  }

  stop() {
    if (this.socket?.readyState === WebSocket.OPEN) {
      this.socket.send(JSON.stringify({ type: "cancel", id: "playground" }));
      say(byId("play-status"), "Stopping\u2026");
    } else if (this.socket) {
      this.end("Stopped.");
    }
  }

  end(text) {
    const socket = this.socket;
    if (!socket) return;
    this.socket = null;
    socket.onclose = socket.onmessage = socket.onopen = null;
    socket.close();
    this.busy(false);
    say(byId("play-status"), text);
  }
}

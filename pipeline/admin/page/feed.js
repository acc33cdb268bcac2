// The live feed: server-sent events while the page is visible, and again after every loss.

const RETRY_MS = [500, 1000, 2000, 4000];

export class Feed {
  /** `on` has about, backlog, snapshot (each with its data), and lost(retryMs). */
  constructor(on) {
    this.on = on;
    this.tries = 0;
    document.addEventListener("visibilitychange", () => this.follow());
    addEventListener("online", () => this.follow());
    this.follow();
  }

  follow() {
    if (document.hidden) this.close();
    else if (!this.source) this.open();
  }

  open() {
    clearTimeout(this.timer);
    this.source = new EventSource("api/live");
    for (const name of ["about", "backlog", "snapshot"]) {
      this.source.addEventListener(name, (event) => {
        this.tries = 0;
        this.on[name](JSON.parse(event.data));
      });
    }
    this.source.onerror = () => this.lose();
  }

  close() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  lose() {
    this.close();
    const delay = RETRY_MS[Math.min(this.tries++, RETRY_MS.length - 1)];
    this.on.lost(delay);
    this.timer = setTimeout(() => this.follow(), delay);
  }
}

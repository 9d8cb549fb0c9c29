// Deep links: the address names what is shown, so that it can be sent to somebody: #step=12&block=7&q=extend.

class Address {
  constructor(app) {
    this.app = app;
    window.addEventListener("hashchange", () => location.hash !== this.hash && this.follow());
  }

  /** Name what is shown. */
  remember() {
    const { app } = this;
    const parts = new URLSearchParams();
    const number = app.stepNumber();
    if (number.startsWith("line ")) parts.set("line", number.slice(5));
    else parts.set("step", number);
    if (app.run) parts.set("run", String(app.run));
    if (app.chosen) parts.set("block", String(app.chosen.block));
    if (app.chosen && app.chosen.lane.index) parts.set("lane", String(app.chosen.lane.index));
    if (app.search.input.value) parts.set("q", app.search.input.value);
    this.hash = `#${parts}`;
    history.replaceState(null, "", this.hash);
  }

  /** Go where the address says; without a step, to the one that breaks the law, or to the first. */
  follow() {
    const { app } = this;
    const parts = new URLSearchParams(location.hash.slice(1));
    const run = Number(parts.get("run") || 0);
    if (run !== app.run && run < app.document.pictures.length && !app.comparing) app.show(run);
    const lane = app.lanes[Number(parts.get("lane") || 0)] || app.lanes[0];
    const block = Number(parts.get("block") ?? -1);
    app.chosen = block >= 0 && block < lane.movie.runs.length ? { lane, block } : null;
    app.search.input.value = parts.get("q") || "";
    app.search.run();
    if (parts.has("step")) app.go(app.lanes[0].timeOf(app.lanes[0].movie.rowOf(Number(parts.get("step")))));
    else if (parts.has("line")) app.go(Number(parts.get("line")) - 1);
    else app.arrive();
  }
}

// The strip above everything: how full the pool was over the whole run, where the search found something, where the law broke. A native
// range input lies on it, so that it can be dragged, and moved with keys by those who do not see it.

const AREAS = [[HELD, SHARED], [CACHED], [RETIRING, MISSING, CONFLICT], [UNKNOWN, ASIDE]];

class Timeline {
  constructor(app) {
    this.app = app;
    this.canvas = byId("strip");
    this.scrub = byId("scrub");
    this.scrub.max = String(app.times - 1);
    this.scrub.addEventListener("input", () => app.go(Number(this.scrub.value)));
    new ResizeObserver(() => this.draw()).observe(this.canvas.parentElement);
  }

  x(time) {
    return ((time + 0.5) / this.app.times) * this.width;
  }

  draw() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = 0;
      this.paint();
    });
  }

  /** How full the pool was, drawn once for a size, a theme and a run: moving through the steps only copies it. */
  usageOf(theme) {
    const { canvas } = this;
    const key = JSON.stringify([canvas.width, canvas.height, theme.card, this.app.run]);
    if (this.usageKey === key) return this.usage;
    this.usage = h("canvas", { width: canvas.width, height: canvas.height });
    this.usageKey = key;
    const pen = this.usage.getContext("2d");
    pen.scale(canvas.width / this.width, canvas.height / this.height);
    this.app.lanes.forEach((lane, index) => this.paintUsage(pen, theme, lane, index));
    return this.usage;
  }

  paint() {
    const ratio = window.devicePixelRatio || 1;
    this.width = this.canvas.parentElement.clientWidth;
    this.height = this.canvas.parentElement.clientHeight;
    this.canvas.width = Math.max(1, Math.round(this.width * ratio));
    this.canvas.height = Math.max(1, Math.round(this.height * ratio));
    const pen = this.canvas.getContext("2d");
    const theme = themeColours();
    pen.drawImage(this.usageOf(theme), 0, 0);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.paintWindow(pen, theme);
    this.paintHits(pen, theme);
    for (const time of this.app.faultTimes) this.paintFlag(pen, theme, time);
    const x = this.x(this.app.time);
    pen.fillStyle = css(theme.ink);
    pen.fillRect(x - 1, 0, 2, this.height);
    pen.beginPath();
    pen.arc(x, this.height - 5, 5, 0, 7);
    pen.fill();
    this.scrub.value = String(this.app.time);
    this.scrub.setAttribute("aria-valuetext", this.app.words());
  }

  /** Held, matchable and retiring blocks stacked; each run has its share of the height. */
  paintUsage(pen, theme, lane, index) {
    const share = (this.height - 10) / this.app.lanes.length;
    const floor = share * (index + 1);
    const { usage, runs } = lane.movie;
    const colours = [css(theme.accent, 0.75), css(theme.accent, 0.28), css(theme.amber, 0.8), css(theme.quiet, 0.18)];
    const columns = Math.ceil(this.width);
    for (let column = 0; column < columns; column += 1) {
      const time = clamp(Math.floor(((column + 0.5) / this.width) * this.app.times), 0, this.app.times - 1);
      const row = lane.rowAt(time);
      if (row < 0) continue;
      let y = floor;
      AREAS.forEach((states, area) => {
        const blocks = states.reduce((sum, state) => sum + usage[row * STATE_WORDS.length + state], 0);
        const height = (blocks / runs.length) * (share - 3);
        pen.fillStyle = colours[area];
        pen.fillRect(column, y - height, 1, height);
        y -= height;
      });
    }
    pen.fillStyle = css(theme.line);
    pen.fillRect(0, floor, this.width, 1);
  }

  paintWindow(pen, theme) {
    const { from, to } = this.app.view;
    if (from <= 0 && to >= this.app.times) return;
    const [left, right] = [(from / this.app.times) * this.width, (to / this.app.times) * this.width];
    pen.fillStyle = css(theme.paper, 0.4);
    pen.fillRect(0, 0, left, this.height - 10);
    pen.fillRect(right, 0, this.width - right, this.height - 10);
    pen.strokeStyle = css(theme.quiet);
    pen.strokeRect(left + 0.5, 0.5, Math.max(2, right - left - 1), this.height - 11);
  }

  paintHits(pen, theme) {
    pen.fillStyle = css(theme.amber);
    let last = -1;
    for (const time of this.app.hits) {
      const x = Math.round(this.x(time));
      if (x === last) continue;
      pen.fillRect(x - 1, this.height - 9, 2, 7);
      last = x;
    }
  }

  paintFlag(pen, theme, time) {
    const x = clamp(this.x(time), 6, this.width - 6);
    pen.fillStyle = css(theme.alarm);
    pen.fillRect(x - 1, 0, 2, this.height - 8);
    pen.beginPath();
    pen.moveTo(x - 6, 0);
    pen.lineTo(x + 6, 0);
    pen.lineTo(x, 9);
    pen.fill();
  }
}

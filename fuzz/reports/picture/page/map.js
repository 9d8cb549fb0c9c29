// The map: one line for each block, time from left to right, coloured by state and holder. What is out of sight is not drawn: a canvas as
// large as the window onto the map stays in place while the map is scrolled, and where steps are narrower than a pixel each column shows one.

const GUTTER = 46; // pixels for the names of the blocks
const AXIS = 20; // pixels for the numbers of the steps
const ROW_LEAST = 5;
const ROW_MOST = 30;
const ROW_TALL = 18; // rows of a large pool, where the reader asks for names in them
const NAMED_ROW = 13; // rows lower than this carry no text

class BlockMap {
  constructor(app, lane) {
    this.app = app;
    this.lane = lane;
    this.blocks = lane.movie.runs.length;
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.marks = h("canvas", { "aria-hidden": "true" });
    this.inner = h("div", { class: "map-inner" }, h("div", { class: "map-window" }, this.canvas, this.marks));
    this.element = h("div", { class: "map", tabindex: "0", role: "application", "aria-label": this.label() }, this.inner);
    this.element.addEventListener("scroll", () => this.draw());
    this.element.addEventListener("mousemove", (event) => this.hover(event));
    this.element.addEventListener("mouseleave", () => this.app.tip(null));
    this.element.addEventListener("click", (event) => this.click(event));
    this.element.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.element.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.resize()).observe(this.element);
  }

  label() {
    return `Map of ${counted(this.blocks, "block")} over ${counted(this.lane.movie.rows, "step")}: up and down choose a block, left and right a step`;
  }

  resize() {
    const room = Math.max(180, Math.round(window.innerHeight * (this.app.comparing ? 0.3 : 0.42)));
    const least = this.app.tall ? ROW_TALL : ROW_LEAST;
    this.rowHeight = clamp(Math.floor((room - AXIS) / this.blocks), least, ROW_MOST);
    const total = this.blocks * this.rowHeight + AXIS;
    this.inner.style.height = `${total}px`;
    this.element.style.height = `${Math.min(total, room) + 2}px`;
    this.width = this.element.clientWidth;
    this.height = Math.min(total, room);
    const ratio = window.devicePixelRatio || 1;
    for (const canvas of [this.canvas, this.marks]) {
      canvas.width = Math.max(1, Math.round(this.width * ratio));
      canvas.height = Math.max(1, Math.round(this.height * ratio));
      canvas.style.width = `${this.width}px`;
      canvas.style.height = `${this.height}px`;
    }
    this.draw();
  }

  // -- places -----------------------------------------------------------------------------------------------------------------------------

  get stepWidth() {
    const { from, to } = this.app.view;
    return (this.width - GUTTER - 4) / (to - from);
  }

  x(time) {
    return GUTTER + (time - this.app.view.from) * this.stepWidth;
  }

  y(block) {
    return AXIS + block * this.rowHeight - this.element.scrollTop;
  }

  /** How far into the run the mouse is, in steps. */
  timeUnder(event) {
    return this.app.view.from + (event.clientX - this.element.getBoundingClientRect().left - GUTTER) / this.stepWidth;
  }

  /** The time and block under the mouse, null outside. */
  at(event) {
    const box = this.element.getBoundingClientRect();
    const time = Math.floor(this.timeUnder(event));
    const block = Math.floor((event.clientY - box.top - AXIS + this.element.scrollTop) / this.rowHeight);
    if (time < 0 || time >= this.app.times || block < 0 || block >= this.blocks || event.clientX - box.left < GUTTER) return null;
    return { time, block };
  }

  // -- drawing ----------------------------------------------------------------------------------------------------------------------------

  /** Draw in the next frame. Where only the current step moved, the map itself stays as it is. */
  draw({ marksOnly = false } = {}) {
    if (!this.width) return;
    const { from, to } = this.app.view;
    const place = `${from} ${to} ${this.element.scrollTop}`;
    this.stale = this.stale || !marksOnly || place !== this.painted;
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = 0;
      if (this.stale) this.paint();
      this.stale = false;
      this.paintMarks();
    });
  }

  pen(canvas) {
    const pen = canvas.getContext("2d");
    const ratio = window.devicePixelRatio || 1;
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    return pen;
  }

  visible() {
    const first = Math.max(0, Math.floor(this.element.scrollTop / this.rowHeight));
    return [first, Math.min(this.blocks, first + Math.ceil(this.height / this.rowHeight) + 1)];
  }

  paint() {
    const pen = this.pen(this.canvas);
    this.painted = `${this.app.view.from} ${this.app.view.to} ${this.element.scrollTop}`;
    this.theme = themeColours();
    this.stripes = {
      [CACHED]: pattern(pen, "rise", css(this.theme.ink, 0.28)),
      [RETIRING]: pattern(pen, "cross", css(this.theme.ink, 0.5)),
      [SHARED]: pattern(pen, "level", css(this.theme.card, 0.75)),
      [CONFLICT]: pattern(pen, "cross", "#ffffff"),
      [ASIDE]: pattern(pen, "dots", css(this.theme.ink, 0.6)),
      [UNKNOWN]: pattern(pen, "rise", css(this.theme.quiet, 0.22)),
      [NULL_BLOCK]: pattern(pen, "cross", css(this.theme.quiet, 0.35)),
    };
    const [first, last] = this.visible();
    if (this.stepWidth >= 2) for (let block = first; block < last; block += 1) this.paintRuns(pen, block);
    else this.paintColumns(pen, first, last);
    this.paintAxis(pen);
    this.paintNames(pen, first, last);
  }

  /** Every run of a block as a bar that carries its name. */
  paintRuns(pen, block) {
    const run = this.lane.movie.runs[block];
    const y = this.y(block);
    const height = this.rowHeight > 8 ? this.rowHeight - 2 : this.rowHeight - 1;
    const { from, to } = this.app.view;
    const start = Math.max(0, this.lane.movie.runAt(block, this.lane.rowAt(Math.floor(from))));
    for (let i = start; i < run.at.length; i += 1) {
      const begin = this.lane.timeOf(run.at[i]);
      const end = i + 1 < run.at.length ? this.lane.timeOf(run.at[i + 1]) : this.app.times;
      if (begin > to) break;
      if (end <= from) continue;
      const x = Math.max(this.x(begin), GUTTER);
      const width = Math.min(this.x(end), this.width) - x;
      paintRun(pen, this, { run, i, block, x, y, width, height });
    }
  }

  /** Steps narrower than a pixel: each column of pixels shows the last of its steps, written pixel by pixel. */
  paintColumns(pen, first, last) {
    const ratio = window.devicePixelRatio || 1;
    const left = Math.round(GUTTER * ratio);
    const columns = Math.max(1, Math.round((this.width - GUTTER - 4) * ratio));
    const image = pen.createImageData(columns, this.canvas.height);
    const pixels = new Uint32Array(image.data.buffer);
    const rows = this.columnRows(columns);
    for (let block = first; block < last; block += 1) {
      const top = Math.max(Math.round(AXIS * ratio), Math.round(this.y(block) * ratio));
      const bottom = Math.min(this.canvas.height, Math.round((this.y(block) + this.rowHeight - 1) * ratio));
      if (bottom <= top) continue;
      this.columnColours(block, rows, pixels, top * columns);
      for (let y = top + 1; y < bottom; y += 1) pixels.copyWithin(y * columns, top * columns, top * columns + columns);
    }
    pen.putImageData(image, left, 0);
  }

  columnRows(columns) {
    const { from, to } = this.app.view;
    const rows = new Int32Array(columns);
    for (let column = 0; column < columns; column += 1) {
      const time = Math.ceil(from + ((column + 1) * (to - from)) / columns) - 1;
      rows[column] = this.lane.rowAt(clamp(time, 0, this.app.times - 1));
    }
    return rows;
  }

  columnColours(block, rows, pixels, offset) {
    const run = this.lane.movie.runs[block];
    let i = Math.max(0, this.lane.movie.runAt(block, rows[0]));
    let [known, colour] = [-1, 0];
    for (let column = 0; column < rows.length; column += 1) {
      while (i + 1 < run.at.length && run.at[i + 1] <= rows[column]) i += 1;
      if (i !== known) {
        const [red, green, blue] = cellColour(this.theme, run.state[i], run.holder[i]);
        colour = (255 << 24) | (blue << 16) | (green << 8) | red;
        known = i;
      }
      pixels[offset + column] = colour;
    }
  }

  paintNames(pen, first, last) {
    pen.fillStyle = css(this.theme.card);
    pen.fillRect(0, 0, GUTTER - 2, this.height);
    pen.font = '11px ui-monospace, "DejaVu Sans Mono", Menlo, monospace';
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    const every = Math.max(1, Math.ceil(11 / this.rowHeight));
    pen.fillStyle = css(this.theme.quiet);
    for (let block = first; block < last; block += 1) {
      if (block % every) continue;
      pen.fillText(`b${block}`, GUTTER - 8, this.y(block) + this.rowHeight / 2);
    }
    pen.textAlign = "left";
  }

  paintAxis(pen) {
    pen.fillStyle = css(this.theme.card);
    pen.fillRect(0, 0, this.width, AXIS - 2);
    pen.fillStyle = css(this.theme.quiet);
    pen.font = '11px ui-monospace, "DejaVu Sans Mono", Menlo, monospace';
    pen.textBaseline = "middle";
    const { from, to } = this.app.view;
    const every = niceStep(56 / this.stepWidth);
    for (let time = Math.ceil(from / every) * every; time < to; time += every) {
      const number = this.lane.movie.number(this.lane.rowAt(time));
      const words = number === null || number === undefined || !this.lane.owns(time) ? "" : thousands(number);
      const x = this.x(time) + 2;
      if (words && x + pen.measureText(words).width < this.width) pen.fillText(words, x, AXIS / 2 - 1);
    }
  }

  /** What moves while the map stays: the current step, the chosen block, what the faults name. */
  paintMarks() {
    const pen = this.pen(this.marks);
    const theme = this.theme || themeColours();
    const x = this.x(this.app.time);
    const width = Math.max(2, this.stepWidth);
    pen.fillStyle = css(theme.accent, this.stepWidth > 4 ? 0.14 : 0.5);
    pen.fillRect(x, 0, width, this.height);
    pen.strokeStyle = css(theme.accent);
    pen.lineWidth = 1.5;
    pen.strokeRect(x, 0.75, width, this.height - 1.5);
    if (this.app.chosen && this.app.chosen.lane === this.lane) {
      pen.strokeStyle = css(theme.ink, 0.7);
      pen.lineWidth = 1;
      pen.strokeRect(GUTTER - 1, this.y(this.app.chosen.block) - 0.5, this.width - GUTTER - 3, this.rowHeight);
    }
    this.paintGaps(pen, theme);
    for (const fault of this.lane.movie.faults) this.paintFault(pen, theme, fault);
  }

  /** A broken line where operations are missing. */
  paintGaps(pen, theme) {
    pen.save();
    pen.setLineDash([4, 4]);
    pen.lineWidth = 2;
    pen.strokeStyle = css(theme.ink);
    for (const row of this.lane.movie.picture.gaps || []) {
      const x = this.x(this.lane.timeOf(row)) + Math.max(1, this.stepWidth / 2);
      if (x < GUTTER || x > this.width) continue;
      pen.beginPath();
      pen.moveTo(x, AXIS);
      pen.lineTo(x, this.height);
      pen.stroke();
    }
    pen.restore();
  }

  paintFault(pen, theme, fault) {
    const time = this.lane.timeOf(fault.row);
    const width = Math.max(9, this.stepWidth);
    const x = Math.min(this.x(time + 1), this.width - 2) - width;
    if (time < this.app.view.from || time > this.app.view.to) return;
    pen.fillStyle = css(theme.alarm);
    pen.beginPath();
    pen.moveTo(x + width / 2 - 5, AXIS - 9);
    pen.lineTo(x + width / 2 + 5, AXIS - 9);
    pen.lineTo(x + width / 2, AXIS - 1);
    pen.fill();
    for (const block of fault.shown) {
      const height = Math.max(8, this.rowHeight);
      const y = this.y(block) - (height - this.rowHeight) / 2 - 1;
      if (y + height < AXIS) continue;
      pen.lineWidth = 5;
      pen.strokeStyle = css(theme.card);
      pen.strokeRect(x, y, width, height);
      pen.lineWidth = 2.5;
      pen.strokeStyle = css(theme.alarm);
      pen.strokeRect(x, y, width, height);
    }
  }

  // -- mouse and keys ---------------------------------------------------------------------------------------------------------------------

  hover(event) {
    const place = this.at(event);
    this.app.tip(place && this.words(place.block, place.time), event);
  }

  words(block, time) {
    const { movie } = this.lane;
    const row = this.lane.rowAt(time);
    const i = movie.runAt(block, row);
    const run = movie.runs[block];
    const until = i + 1 < run.at.length ? ` until ${movie.label(run.at[i + 1])}` : "";
    const since = run.at[i] > 0 || i > 0 ? `, since ${movie.label(run.at[i])}` : "";
    return `${blockName(block, run.generation[i])} at ${movie.label(row)}: ${runState(run, i)}${since}${until}`;
  }

  click(event) {
    const place = this.at(event);
    if (!place) return;
    this.app.choose(this.lane, place.block);
    this.app.go(place.time);
  }

  wheel(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    this.app.zoom(event.deltaY < 0 ? 1.5 : 1 / 1.5, this.timeUnder(event));
  }

  key(event) {
    const by = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!by || event.ctrlKey || event.altKey) return;
    event.preventDefault();
    const now = this.app.chosen && this.app.chosen.lane === this.lane ? this.app.chosen.block + by : 0;
    const block = clamp(now, 0, this.blocks - 1);
    this.app.choose(this.lane, block);
    this.show(block);
    this.app.say(this.words(block, this.app.time));
  }

  /** Scroll so that a block is in sight: to the middle, where it is not. */
  show(block) {
    const top = block * this.rowHeight;
    const room = this.height - AXIS - this.rowHeight;
    if (top < this.element.scrollTop || top > this.element.scrollTop + room) this.element.scrollTop = top - room / 2;
  }
}

/** 1, 2, 5, 10, 20, ...: the first that is not below. */
function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, least)));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least);
}

// The page: one time that everything shows, and what a reader can do.

const PLAY_MS = 350;
const LONG_RUN = 1500; // steps above which the map opens on a part of the run: bars of a pixel tell little
const FIRST_WINDOW = 160;

class App {
  constructor(document_) {
    this.document = document_;
    this.comparing = (document_.pairs || []).length > 0;
    this.expanded = new Set();
    this.hits = new Int32Array(0);
    this.chosen = null;
    this.actions = {
      first: () => this.go(0),
      last: () => this.go(this.times - 1),
      back: () => this.go(this.time - 1),
      forward: () => this.go(this.time + 1),
      farBack: () => this.go(this.time - 100),
      farForward: () => this.go(this.time + 100),
      play: () => this.play(),
      violation: () => this.toViolation(1),
      violationBefore: () => this.toViolation(-1),
      difference: () => this.toDifference(),
      changedBefore: () => this.walk(-1),
      changedNext: () => this.walk(1),
      search: () => byId("query").select(),
      nextHit: () => this.search.next(1),
      lastHit: () => this.search.next(-1),
      in: () => this.zoom(2, this.time + 0.5),
      out: () => this.zoom(0.5, this.time + 0.5),
      fit: () => this.fit(),
      tall: () => this.growRows(),
      copy: () => this.copy(this.lanes[0].movie.picture.source || this.lanes[0].movie.picture.program, "the program"),
      link: () => this.copy(location.href, "the link"),
      theme: () => this.changeTheme(),
      help: () => byId("help").showModal(),
    };
  }

  /** Show one run, or all of them beside each other where they are compared. */
  show(run) {
    this.run = run;
    const { pictures, pairs } = this.document;
    const shown = this.comparing ? pictures : pictures.slice(run, run + 1);
    this.time = 0;
    this.times = Math.max(1, this.comparing ? pairs.length : shown[0].frames.length);
    this.view = { from: 0, to: this.times > LONG_RUN ? FIRST_WINDOW : this.times };
    this.chosen = null;
    this.lanes = [];
    shown.forEach((picture, index) => this.lanes.push(new Lane(this, new Movie(picture), index)));
    byId("list").replaceChildren();
    byId("lanes").replaceChildren(...this.lanes.map((lane) => lane.element));
    document.body.classList.toggle("comparing", this.comparing);
    this.faultTimes = faultTimes(this.lanes);
    this.differing = this.comparing ? differingTimes(this) : [];
    this.list = new StepList(this);
    this.timeline = this.timeline || new Timeline(this);
    byId("scrub").max = String(this.times - 1);
    byId("of").textContent = `of ${thousands(this.times)}`;
    tellFacts(this);
    this.list.fit();
    this.growRows(this.times > LONG_RUN);
  }

  // -- time -------------------------------------------------------------------------------------------------------------------------------

  go(time) {
    this.time = clamp(Math.round(time), 0, this.times - 1);
    this.follow();
    this.list.follow();
    tellCharges(this);
    this.render();
    this.address.remember();
    this.search.tell(this.search.input.value);
    this.say(this.words());
  }

  render() {
    if (this.rendering) return;
    this.rendering = requestAnimationFrame(() => {
      this.rendering = 0;
      this.lanes.forEach((lane) => lane.render());
      this.list.draw();
      this.timeline.draw();
      if (document.activeElement !== byId("goto")) byId("goto").value = this.stepNumber();
    });
  }

  /** The current step as a reader counts it: by the numbers of the run, or by lines where runs are compared or the operation was skipped. */
  stepNumber() {
    const number = this.comparing ? null : this.lanes[0].movie.number(this.time);
    return number === null || number === undefined ? `line ${this.time + 1}` : String(number);
  }

  words() {
    const lane = this.lanes.find((one) => one.owns(this.time)) || this.lanes[0];
    const row = lane.rowAt(this.time);
    const { movie } = lane;
    const laws = lane.faultsAt(this.time).map((fault) => fault.law);
    const broken = laws.length ? `, breaks ${laws.join(" and ")}` : "";
    return movie.rows ? `${movie.label(row)}: ${movie.text(row)}${movie.answer(row) ? `, ${movie.answer(row)}` : ""}${broken}` : "no operation ran";
  }

  /** To the next step that breaks a law, or to the one before; around at the ends. */
  toViolation(direction) {
    const times = this.faultTimes;
    if (!times.length) return;
    const at = direction > 0 ? above(times, this.time) : above(times, this.time - 1) - 1;
    this.go(times[(at + times.length) % times.length]);
  }

  play() {
    const button = document.querySelector('[data-do="play"]');
    if (this.playing) {
      clearInterval(this.playing);
      this.playing = 0;
    } else {
      if (this.time === this.times - 1) this.go(0);
      this.playing = setInterval(() => {
        if (this.time === this.times - 1) this.play();
        else this.go(this.time + 1);
      }, PLAY_MS);
    }
    button.textContent = this.playing ? "❚❚" : "▶";
    button.setAttribute("aria-pressed", String(Boolean(this.playing)));
    button.setAttribute("aria-label", this.playing ? "Stop" : "Play");
  }

  // -- comparing --------------------------------------------------------------------------------------------------------------------------

  differs(time) {
    const at = above(this.differing, time);
    return at > 0 && this.differing[at - 1] === time;
  }

  toDifference() {
    if (!this.differing.length) return;
    const at = above(this.differing, this.time);
    this.go(this.differing[at % this.differing.length]);
  }

  // -- the map ----------------------------------------------------------------------------------------------------------------------------

  /** Show fewer or more steps; what lies at `center` stays where it is. */
  zoom(factor, center) {
    const { from, to } = this.view;
    const length = clamp((to - from) / factor, Math.min(8, this.times), this.times);
    const start = clamp(center - ((center - from) / (to - from)) * length, 0, this.times - length);
    this.view = { from: start, to: start + length };
    this.redraw();
  }

  fit() {
    this.view = { from: 0, to: this.times };
    this.redraw();
  }

  /** Rows that are tall enough for names, or all blocks in sight. */
  growRows(tall = !this.tall) {
    this.tall = tall;
    document.querySelector('[data-do="tall"]').setAttribute("aria-pressed", String(tall));
    for (const lane of this.lanes) {
      lane.map.resize();
      const block = this.chosen && this.chosen.lane === lane ? this.chosen.block : lane.movie.faults.flatMap((fault) => fault.shown)[0];
      if (block !== undefined) lane.map.show(block);
    }
  }

  /** Move the window of the map so that the current step is in it. */
  follow() {
    const { from, to } = this.view;
    const length = to - from;
    const margin = Math.min(length / 10, 4);
    if (this.time >= from + margin && this.time + 1 <= to - margin) return;
    const start = clamp(this.time + 0.5 - length / 2, 0, this.times - length);
    if (length < this.times) this.view = { from: start, to: start + length };
  }

  redraw() {
    this.lanes.forEach((lane) => lane.map.draw());
    this.timeline.draw();
  }

  choose(lane, block) {
    this.chosen = lane ? { lane, block } : null;
    if (lane) lane.map.show(block);
    this.render();
    this.address.remember();
  }

  walk(direction) {
    if (!this.chosen) return;
    const { lane, block } = this.chosen;
    const row = nextChange(lane.movie, block, lane.rowAt(this.time), direction);
    if (row >= 0) this.go(lane.timeOf(row));
  }

  // -- the rest ---------------------------------------------------------------------------------------------------------------------------

  isHit(time) {
    const at = above(this.hits, time);
    return at > 0 && this.hits[at - 1] === time;
  }

  say(words) {
    byId("said").textContent = words;
  }

  tip(words, event) {
    const tip = byId("tip");
    tip.hidden = !words;
    if (!words) return;
    tip.textContent = words;
    tip.style.left = `${clamp(event.clientX + 14, 4, window.innerWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${clamp(event.clientY + 16, 4, window.innerHeight - tip.offsetHeight - 8)}px`;
  }

  async copy(text, what) {
    if (!text) return;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = h("textarea", { class: "hidden" });
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    this.say(`Copied ${what}.`);
    const toast = h("div", { class: "toast" }, `Copied: ${what}`);
    document.body.append(toast);
    setTimeout(() => toast.remove(), 1400);
  }

  changeTheme() {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    this.redraw();
    this.render();
  }

  change(run) {
    this.show(run);
    this.search.run();
    this.arrive();
  }

  arrive() {
    if (this.faultTimes.length) this.go(this.faultTimes[0]);
    else this.go(this.comparing && this.differing.length ? this.differing[0] : 0);
  }

  start() {
    this.show(0);
    this.search = new Search(this);
    this.address = new Address(this);
    for (const button of document.querySelectorAll("[data-do]")) button.addEventListener("click", () => this.actions[button.dataset.do]());
    byId("theme").addEventListener("click", this.actions.theme);
    byId("help-open").addEventListener("click", this.actions.help);
    byId("goto").addEventListener("change", () => {
      const asked = /^(line )?\s*(\d+)$/.exec(byId("goto").value.trim().replaceAll(",", ""));
      if (asked) this.go(asked[1] || this.comparing ? Number(asked[2]) - 1 : this.lanes[0].movie.rowOf(Number(asked[2])));
      byId("goto").blur();
    });
    window.addEventListener("resize", () => {
      this.lanes.forEach((lane) => lane.map.resize());
      this.list.fit();
    });
    window.addEventListener("scroll", () => this.list.fit(), { passive: true });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    helpDialog();
    listenToKeys(this);
    this.address.follow();
    document.body.dataset.ready = "true";
  }
}

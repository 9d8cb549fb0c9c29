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
      violation: () => this.toViolation(),
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
      copy: () => this.copy(this.lanes[0].movie.picture.source, "as a test"),
      link: () => this.copy(location.href, "link"),
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
    this.tall = false;
    this.lanes = [];
    shown.forEach((picture, index) => this.lanes.push(new Lane(this, new Movie(picture), index)));
    byId("list").replaceChildren();
    byId("lanes").replaceChildren(...this.lanes.map((lane) => lane.element));
    document.body.classList.toggle("comparing", this.comparing);
    this.differing = this.comparing ? this.differences() : [];
    this.list = new StepList(this);
    this.timeline = this.timeline || new Timeline(this);
    byId("scrub").max = String(this.times - 1);
    byId("of").textContent = `of ${thousands(this.times)}`;
    this.tellFacts();
    this.list.fit();
  }

  // -- time -------------------------------------------------------------------------------------------------------------------------------

  go(time) {
    this.time = clamp(Math.round(time), 0, this.times - 1);
    this.follow();
    this.list.follow();
    this.render();
    this.remember();
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
    const broken = lane.breaksAt(this.time) ? `, breaks ${movie.picture.accusation.law}` : "";
    return movie.rows ? `${movie.label(row)}: ${movie.text(row)}${movie.answer(row) ? `, ${movie.answer(row)}` : ""}${broken}` : "no operation ran";
  }

  toViolation() {
    const lane = this.lanes.find((one) => one.movie.violationRow() >= 0);
    if (lane) this.go(lane.timeOf(lane.movie.violationRow()));
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

  /** The times at which two runs differ: one has no such operation, or the answers, the blocks of its sequences or their computed tokens differ. */
  differences() {
    const [a, b] = this.lanes;
    const found = [];
    for (let time = 0; time < this.times; time += 1) {
      if (!a.owns(time) || !b.owns(time)) found.push(time);
      else if (!sameRow(a.movie, a.rowAt(time), b.movie, b.rowAt(time))) found.push(time);
    }
    return found;
  }

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
  growRows() {
    this.tall = !this.tall;
    const button = document.querySelector('[data-do="tall"]');
    button.setAttribute("aria-pressed", String(this.tall));
    for (const lane of this.lanes) {
      lane.map.resize();
      const block = this.chosen && this.chosen.lane === lane ? this.chosen.block : lane.movie.accusedBlocks[0];
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
    this.remember();
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
    this.say(`Copied the ${what}.`);
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

  tellFacts() {
    const { title, laws, summary, cases } = this.document;
    const { picture } = this.lanes[0].movie;
    byId("title").textContent = title;
    const broken = this.lanes.some((lane) => lane.movie.picture.accusation);
    const trouble = this.lanes.some((lane) => lane.movie.picture.trouble);
    const kind = broken ? "broken" : trouble ? "error" : "held";
    byId("verdict").className = `verdict ${kind}`;
    byId("verdict").textContent = { broken: "✕ broken", error: "! not judged", held: "✓ held" }[kind];
    byId("pool").textContent = `${counted(picture.num_blocks, "block")} of ${counted(picture.groups[0].block_size, "token")}, ${counted(picture.frames.length, "operation")}`;
    const charges = this.lanes.map((lane) => accusationPanel(this, lane)).filter(Boolean);
    byId("accusation").hidden = !charges.length;
    byId("accusation").replaceChildren(...charges);
    byId("facts").replaceChildren(...programPanel(this), ...casesPanel(this, cases), lawsPanel(laws, summary) || "");
    document.querySelector('[data-do="violation"]').hidden = !broken;
    document.querySelector('[data-do="difference"]').hidden = !this.comparing;
    document.querySelector('[data-do="difference"]').textContent = `next of ${counted(this.differing.length, "difference")}`;
    this.tellRuns();
  }

  tellRuns() {
    const { pictures } = this.document;
    const several = pictures.length > 1 && !this.comparing;
    byId("runs").hidden = !several;
    if (!several) return;
    const tabs = pictures.map((picture, run) =>
      h("button", { type: "button", "aria-current": run === this.run ? "true" : null, onclick: () => this.change(run) }, picture.name),
    );
    byId("runs").replaceChildren(...tabs);
  }

  change(run) {
    this.show(run);
    this.search.run();
    this.arrive();
  }

  // -- deep links -------------------------------------------------------------------------------------------------------------------------

  /** The address names what is shown, so that it can be sent to somebody: #step=12&block=7&q=extend. */
  remember() {
    const parts = new URLSearchParams();
    const number = this.stepNumber();
    if (number.startsWith("line ")) parts.set("line", number.slice(5));
    else parts.set("step", number);
    if (this.run) parts.set("run", String(this.run));
    if (this.chosen) parts.set("block", String(this.chosen.block));
    if (this.chosen && this.chosen.lane.index) parts.set("lane", String(this.chosen.lane.index));
    if (this.search.input.value) parts.set("q", this.search.input.value);
    this.hash = `#${parts}`;
    history.replaceState(null, "", this.hash);
  }

  /** Go where the address says; without one, to the step that breaks the law, or to the first. */
  followLink() {
    const parts = new URLSearchParams(location.hash.slice(1));
    const run = Number(parts.get("run") || 0);
    if (run !== this.run && run < this.document.pictures.length && !this.comparing) this.show(run);
    const lane = this.lanes[Number(parts.get("lane") || 0)] || this.lanes[0];
    const block = Number(parts.get("block") ?? -1);
    this.chosen = block >= 0 && block < lane.movie.runs.length ? { lane, block } : null;
    this.search.input.value = parts.get("q") || "";
    this.search.run();
    if (parts.has("step")) this.go(Math.max(0, this.lanes[0].timeOf(this.lanes[0].movie.rowOf(Number(parts.get("step"))))));
    else if (parts.has("line")) this.go(Number(parts.get("line")) - 1);
    else this.arrive();
  }

  arrive() {
    const broken = this.lanes.find((lane) => lane.movie.violationRow() >= 0);
    if (broken) this.go(broken.timeOf(broken.movie.violationRow()));
    else this.go(this.comparing && this.differing.length ? this.differing[0] : 0);
  }

  start() {
    this.show(0);
    this.search = new Search(this);
    for (const button of document.querySelectorAll("[data-do]")) button.addEventListener("click", () => this.actions[button.dataset.do]());
    byId("theme").addEventListener("click", this.actions.theme);
    byId("help-open").addEventListener("click", this.actions.help);
    byId("goto").addEventListener("change", () => {
      const asked = /^(line )?\s*(\d+)$/.exec(byId("goto").value.trim().replaceAll(",", ""));
      if (asked) this.go(asked[1] || this.comparing ? Number(asked[2]) - 1 : this.lanes[0].movie.rowOf(Number(asked[2])));
      byId("goto").blur();
    });
    window.addEventListener("hashchange", () => location.hash !== this.hash && this.followLink());
    window.addEventListener("resize", () => {
      this.lanes.forEach((lane) => lane.map.resize());
      this.list.fit();
    });
    window.addEventListener("scroll", () => this.list.fit(), { passive: true });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    helpDialog();
    listenToKeys(this);
    this.followLink();
    document.body.dataset.ready = "true";
  }
}

/** Whether two rows say the same: operation, answer, and what they changed of sequences. */
function sameRow(one, row, other, otherRow) {
  if (one.text(row) !== other.text(otherRow) || one.answer(row) !== other.answer(otherRow)) return false;
  const changes = (movie, at) => JSON.stringify((movie.picture.frames[at].s || []).map(([seq, known, computed, , flags, out, tables]) => [seq, known, computed, flags, out && out.slice(0, 3), tables]));
  return changes(one, row) === changes(other, otherRow);
}

async function readData() {
  const element = byId("data");
  if (element.type === "application/json") return JSON.parse(element.textContent);
  const packed = Uint8Array.from(atob(element.textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

readData().then((data) => {
  // Where nothing ran (kernels, or a cache that cannot be built) there is no map, only what was found.
  if (data.pictures.length) new App(data).start();
  else showCases(data);
});

/** A page without any run: what was found, to be read and copied. */
function showCases(data) {
  for (const id of ["time", "search"]) byId(id).hidden = true;
  document.querySelector("main").hidden = true;
  byId("title").textContent = data.title;
  const app = new App(data);
  const broken = (data.cases || []).length;
  byId("verdict").className = `verdict ${broken ? "broken" : "held"}`;
  byId("verdict").textContent = broken ? "✕ broken" : "✓ held";
  byId("facts").replaceChildren(...casesPanel(app, data.cases), lawsPanel(data.laws, data.summary) || "");
  byId("theme").addEventListener("click", () => {
    const root = document.documentElement;
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  });
  byId("help-open").hidden = true;
  document.body.dataset.ready = "true";
}

// One run on the page: its map and its panels. Two runs that are compared are two lanes that share one time.

class Lane {
  constructor(app, movie, index) {
    this.app = app;
    this.movie = movie;
    this.index = index;
    this.lay();
    movie.faults.forEach((fault) => (fault.shown = accusedBlocks(movie, fault)));
    this.map = new BlockMap(app, this);
    this.body = h("div", { class: "panels" });
    const { picture } = movie;
    const title = app.comparing ? h("h2", { class: "lane-title" }, `${"AB"[index]} `, h("b", {}, picture.name), h("span", { class: "quiet" }, ` on ${picture.target}`)) : null;
    this.element = h("section", { class: "lane", "aria-label": app.comparing ? `Run ${"AB"[index]}` : "The run" }, title, legend((picture.gaps || []).length, movie.faults.length > 0 && movie.violationRow() < movie.rows - 1), this.map.element, this.body);
  }

  /** Which row is in effect at each time, and at which time each row begins. Alone, a run has one row for each time. */
  lay() {
    const { pairs } = this.app.document;
    if (!this.app.comparing) {
      this.rows = null;
      return;
    }
    this.rows = new Int32Array(this.app.times);
    this.times = new Int32Array(this.movie.rows);
    let row = -1;
    pairs.forEach((pair, time) => {
      if (pair[this.index] >= 0) {
        row = pair[this.index];
        this.times[row] = time;
      }
      this.rows[time] = row;
    });
  }

  rowAt(time) {
    return this.rows ? this.rows[time] : Math.min(time, this.movie.rows - 1);
  }

  timeOf(row) {
    return this.rows ? (row < 0 ? 0 : this.times[row]) : row;
  }

  /** Whether this run has an operation of its own at this time. */
  owns(time) {
    return this.rows ? this.app.document.pairs[time][this.index] >= 0 : time < this.movie.rows;
  }

  /** The laws that are broken at this time. */
  faultsAt(time) {
    return this.rowAt(time) < 0 ? [] : this.movie.faultsAt(this.rowAt(time));
  }

  accuses(block, time) {
    return this.faultsAt(time).some((fault) => fault.shown.includes(block));
  }

  accusesSequence(seq, time) {
    return this.faultsAt(time).some((fault) => fault.sequences.includes(seq));
  }

  render() {
    const { app, movie } = this;
    const row = this.rowAt(app.time);
    const before = movie.stateAt(this.owns(app.time) ? row - 1 : row);
    const after = this.owns(app.time) ? before.clone() : before;
    if (this.owns(app.time)) after.apply(movie.picture.frames[row]);
    this.state = after;
    const chosen = app.chosen && app.chosen.lane === this ? blockPanel(app, this, app.chosen.block) : null;
    const text = row < 0 ? "before the first operation" : movie.text(row);
    this.body.replaceChildren(
      h("section", { class: "what", "aria-label": "What changed" }, h("h3", {}, movie.label(row), h("code", {}, text), answerText(movie, row)), row < 0 ? "" : changesPanel(app, this, before, after)),
      chosen || "",
      h("section", { class: "wide", "aria-label": "Model and cache" }, h("h3", {}, "Model and cache"), sequencesPanel(app, this, before, after)),
      h("section", { "aria-label": "Free list" }, h("h3", {}, "Free list"), freePanel(app, this, after)),
      h("section", { "aria-label": "Prefix index" }, h("h3", {}, "Prefix index"), indexPanel(app, this, after)),
      h("section", { "aria-label": "Reference counts" }, h("h3", {}, "Reference counts"), countsPanel(app, this, after)),
    );
    this.map.draw({ marksOnly: true });
  }
}

function answerText(movie, row) {
  const answer = row < 0 ? "" : movie.answer(row);
  return answer && movie.number(row) !== null ? h("span", { class: "answer" }, `→ ${answer}`) : null;
}

/** The blocks that a fault is about: those that its reason names, else those of the first difference, else those of its sequences. */
function accusedBlocks(movie, fault) {
  const named = fault.blocks.filter((block) => block < movie.picture.num_blocks);
  if (named.length) return named;
  const differing = fault.differences.map((difference) => difference.block).filter((block) => typeof block === "number");
  if (differing.length) return differing.slice(0, 1);
  const state = movie.stateAt(fault.row);
  const listed = fault.sequences.flatMap((seq) => (state.sequences.has(seq) ? state.sequences.get(seq).tables.flat() : []));
  return [...new Set(listed.filter((block) => block !== NO_BLOCK))].slice(0, 8);
}

function legend(gaps, goesOn) {
  const items = [["held", "held, coloured by sequence"], ["shared", "shared"], ["cached", "free, matchable"], ["free", "free"], ["retiring", "retiring"], ["conflict", "held and free"], ["outline", "the broken law"]];
  if (goesOn) items.push(["aside", "set aside: accused by a fault before"]);
  if (gaps) items.push(["unknown", "not known: lines are missing"]);
  return h("ul", { class: "legend", "aria-label": "Legend" }, items.map(([kind, words]) => h("li", {}, h("i", { class: `key ${kind}`, "aria-hidden": "true" }), words)));
}

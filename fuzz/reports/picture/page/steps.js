// The list of steps. Only the lines in sight are in the document, so that 100,000 of them scroll as ten do.

const LINE = 26; // pixels, as in panels.css
const SPARE_LINES = 6;

class StepList {
  constructor(app) {
    this.app = app;
    this.element = byId("list");
    this.inner = h("div", { class: "list-inner" });
    this.top = 0; // kept beside the element: asking it would make the browser lay out the whole page
    this.height = 0;
    this.inner.style.height = `${app.times * LINE}px`;
    this.element.append(this.inner);
    this.element.addEventListener("scroll", () => {
      this.top = this.element.scrollTop;
      this.draw();
    });
    this.inner.addEventListener("click", (event) => {
      const line = event.target.closest("[data-time]");
      if (line) app.go(Number(line.dataset.time));
    });
    this.fit();
  }

  /** The list ends where the window ends, however much of the page stands above it. Not where it lies above the map: there the style decides. */
  fit() {
    const room = window.innerHeight - this.element.getBoundingClientRect().top - 18;
    const beside = matchMedia("(min-width: 901px)").matches;
    this.element.style.height = beside ? `${Math.max(8 * LINE, room)}px` : "";
    this.height = this.element.clientHeight;
    this.draw();
  }

  /** Bring the current step into sight. */
  follow() {
    const top = this.app.time * LINE;
    if (top >= this.top + LINE && top <= this.top + this.height - 2 * LINE) return;
    this.top = clamp(top - this.height / 2, 0, Math.max(0, this.app.times * LINE - this.height));
    this.element.scrollTop = this.top;
  }

  /** Draw the lines in sight; where they are there already, only the mark of the current one moves, unless all are to be made anew. */
  draw({ anew = false } = {}) {
    const first = Math.max(0, Math.floor(this.top / LINE) - SPARE_LINES);
    const last = Math.min(this.app.times, first + Math.ceil(this.height / LINE) + 2 * SPARE_LINES);
    if (anew || first !== this.first || last !== this.last) {
      const lines = [];
      for (let time = first; time < last; time += 1) lines.push(this.line(time));
      this.inner.replaceChildren(...lines);
      [this.first, this.last] = [first, last];
    }
    this.mark();
  }

  mark() {
    for (const line of this.inner.querySelectorAll(".current")) {
      line.classList.remove("current");
      line.setAttribute("aria-selected", "false");
    }
    const { time } = this.app;
    this.element.setAttribute("aria-activedescendant", `step-${time}`);
    if (time < this.first || time >= this.last) return;
    const line = this.inner.children[time - this.first];
    line.classList.add("current");
    line.setAttribute("aria-selected", "true");
  }

  line(time) {
    const { app } = this;
    const classes = ["line", app.isHit(time) && "hit", app.differs(time) && "differs"];
    const cells = app.lanes.map((lane) => this.cell(lane, time));
    const element = h(
      "div",
      {
        class: classes.filter(Boolean).join(" "),
        id: `step-${time}`,
        role: "option",
        "aria-selected": "false",
        "aria-setsize": String(app.times),
        "aria-posinset": String(time + 1),
        "data-time": String(time),
      },
      cells,
    );
    element.style.top = `${time * LINE}px`;
    return element;
  }

  cell(lane, time) {
    const { movie } = lane;
    if (!lane.owns(time)) return h("span", { class: "cell absent" }, this.app.comparing ? "not in this run" : "no operation ran");
    const row = lane.rowAt(time);
    const number = movie.number(row);
    const faults = movie.faultsAt(row);
    const broken = faults.length > 0;
    const text = movie.text(row);
    const verb = movie.kind(row);
    return h(
      "span",
      { class: `cell${movie.isGap(row) ? " gap" : number === null ? " skipped" : ""}${broken ? " broken" : ""}`, title: `${text}${movie.answer(row) ? `: ${movie.answer(row)}` : ""}` },
      h("span", { class: "number" }, number === null ? "–" : String(number)),
      h("span", { class: `verb ${verb}` }, text),
      movie.answer(row) ? h("span", { class: "answer" }, movie.answer(row)) : null,
      broken ? h("span", { class: "flag", title: `breaks ${faults[0].law}` }, "breaks the law") : null,
    );
  }
}

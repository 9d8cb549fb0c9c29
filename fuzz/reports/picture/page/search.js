// Search: words of operations and answers, a block (b7, b7#3), a sequence (s1), a step (#12).

class Search {
  constructor(app) {
    this.app = app;
    this.input = byId("query");
    this.output = byId("matches");
    this.input.addEventListener("input", () => this.run());
    byId("search").addEventListener("submit", (event) => {
      event.preventDefault();
      this.next(1);
    });
    this.input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && event.shiftKey) {
        event.preventDefault();
        this.next(-1);
      } else if (event.key === "Escape") {
        this.input.value = "";
        this.run();
        this.input.blur();
      }
    });
  }

  run() {
    const query = this.input.value.trim().toLowerCase();
    const times = new Set();
    if (query) for (const lane of this.app.lanes) for (const row of matchingRows(lane.movie, query)) times.add(lane.timeOf(row));
    this.app.hits = Int32Array.from(times).sort();
    this.tell(query);
    this.app.address.remember();
    this.app.list.draw({ anew: true });
    this.app.timeline.draw();
  }

  tell(query) {
    const { hits, time } = this.app;
    const place = above(hits, time);
    const here = place && hits[place - 1] === time ? `${thousands(place)} of ` : "";
    this.output.textContent = !query ? "" : hits.length ? `${here}${thousands(hits.length)}` : "nothing";
  }

  /** Go to the next match, or the last one before; around at the ends. */
  next(direction) {
    const { hits, time } = this.app;
    if (!hits.length) return;
    const after = above(hits, time);
    const at = direction > 0 ? after : after - 1 - (hits[after - 1] === time ? 1 : 0);
    this.app.go(hits[(at + hits.length) % hits.length]);
    this.tell(this.input.value);
  }
}

function matchingRows(movie, query) {
  const block = /^b(\d+)(?:#(\d+))?$/.exec(query);
  if (block) return blockRows(movie, Number(block[1]), block[2] === undefined ? null : Number(block[2]));
  const sequence = /^s(?:eq(?:uence)?)? ?(\d+)$/.exec(query);
  if (sequence) return movie.rowsOfSequence.get(Number(sequence[1])) || [];
  const step = /^#(\d+)$/.exec(query);
  if (step) return [movie.rowOf(Number(step[1]))].filter((row) => row >= 0);
  const rows = [];
  for (let row = 0; row < movie.rows; row += 1) {
    if (movie.text(row).toLowerCase().includes(query) || movie.answer(row).toLowerCase().includes(query)) rows.push(row);
  }
  return rows;
}

/** Where a block changes, or where one generation of it begins and ends. */
function blockRows(movie, block, generation) {
  const run = movie.runs[block];
  if (!run) return [];
  const rows = [];
  for (let i = 1; i < run.at.length; i += 1) {
    if (generation === null || run.generation[i] === generation || run.generation[i - 1] === generation) rows.push(run.at[i]);
  }
  return rows;
}

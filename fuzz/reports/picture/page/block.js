// The history of one block: its generations, who held each, and when. Chosen on the map or by any chip with its name.

const MOST_HISTORY = 200;

function blockPanel(app, lane, block) {
  const { movie } = lane;
  const run = movie.runs[block];
  const now = movie.runAt(block, lane.rowAt(app.time));
  const from = clamp(now - MOST_HISTORY / 2, 0, Math.max(0, run.at.length - MOST_HISTORY));
  const items = [];
  for (let i = from; i < Math.min(run.at.length, from + MOST_HISTORY); i += 1) items.push(historyItem(app, lane, block, i, i === now));
  const close = h("button", { type: "button", class: "close", "aria-label": "Close the history of this block", onclick: () => app.choose(null) }, "×");
  const walk = h(
    "span",
    { class: "walk" },
    h("button", { type: "button", title: "Where this block changed before ([)", onclick: () => app.walk(-1) }, "‹ changed"),
    h("button", { type: "button", title: "Where this block changes next (])", onclick: () => app.walk(1) }, "changes ›"),
  );
  const title = h("h3", {}, `Block ${block}`, h("span", { class: "quiet" }, ` ${counted(run.at.length - 1, "change")}`), walk, close);
  const panel = h("section", { class: "history", "aria-label": `History of block ${block}` }, title, h("ol", {}, items));
  requestAnimationFrame(() => {
    const current = panel.querySelector(".now");
    if (current) current.parentElement.scrollTop = current.offsetTop - current.parentElement.clientHeight / 2;
  });
  return panel;
}

function historyItem(app, lane, block, i, now) {
  const run = lane.movie.runs[block];
  const label = i === 0 ? "at first" : lane.movie.label(run.at[i]);
  const swatch = h("i", { class: "swatch", "aria-hidden": "true" });
  swatch.style.background = css(cellColour(themeColours(), run.state[i], run.holder[i]));
  const go = h("button", { type: "button", onclick: () => app.go(lane.timeOf(run.at[i])) }, label);
  return h("li", { class: now ? "now" : "", "aria-current": now ? "step" : null }, swatch, go, h("b", {}, blockName(block, run.generation[i])), " ", runState(run, i, "s"));
}

/** The next (or last) row at which a block changes, -1 where there is none. */
function nextChange(movie, block, row, direction) {
  const { at } = movie.runs[block];
  if (direction > 0) {
    const index = above(at, row);
    return index < at.length ? at[index] : -1;
  }
  const index = above(at, row - 1) - 1;
  return index > 0 ? at[index] : -1;
}

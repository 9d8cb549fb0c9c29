// The books of the cache: the free list in the order in which blocks are handed out, the prefix index as the tree that it is, and the counts.

const MOST_FREE = 100;
const MOST_INDEX = 80;

function freePanel(app, lane, after) {
  const { books } = lane.movie.picture;
  if (!books.includes("free")) return h("p", { class: "quiet" }, "This cache does not show its free list.");
  if (!after.free.length) return h("p", { class: "quiet" }, "No block can be handed out.");
  const chips = after.free.slice(0, MOST_FREE).map((block) => {
    const chip = blockChip(app, lane, block, after.name(block));
    if (after.matchable.has(block)) chip.classList.add("matchable");
    return chip;
  });
  const rest = after.free.length - chips.length;
  return h(
    "div",
    {},
    h("p", { class: "quiet" }, `${counted(after.free.length, "block")}, the next to be handed out first; those with a dot still have matchable content.`),
    h("div", { class: "chips" }, chips, rest > 0 ? h("span", { class: "quiet" }, `… ${thousands(rest)} more`) : null),
  );
}

/** The matchable blocks as a tree: a block stands below the one whose prefix it continues. */
function indexPanel(app, lane, after) {
  const { movie } = lane;
  if (!movie.picture.books.includes("cached")) return h("p", { class: "quiet" }, "This cache does not show which blocks are matchable.");
  if (!after.matchable.size) return h("p", { class: "quiet" }, "Nothing is matchable.");
  const entries = [...after.matchable].sort((a, b) => a - b).map((block) => indexEntry(movie, after, block));
  const byEnd = new Map(entries.filter((entry) => entry.end).map((entry) => [`${entry.group}/${entry.end}`, entry]));
  const roots = [];
  for (const entry of entries) {
    const above = byEnd.get(`${entry.group}/${entry.start}`);
    (above && above !== entry ? above.below : roots).push(entry);
  }
  const budget = { left: MOST_INDEX };
  const list = indexList(app, lane, after, roots, budget);
  const rest = entries.length - MOST_INDEX;
  return h("div", {}, h("p", { class: "quiet" }, `${counted(entries.length, "block")}, each below the one that it continues.`), list, rest > 0 ? h("p", { class: "quiet" }, `… ${thousands(rest)} more`) : null);
}

/** `start`: the node before the block's first token; `end`: the node of its last one. */
function indexEntry(movie, after, block) {
  const slots = after.slots.subarray(block * movie.stride, (block + 1) * movie.stride);
  const shown = [...slots].filter((content) => content);
  if (!shown.length) return { block, group: 0, start: -1, end: 0, tokens: [], space: "", below: [] };
  const nodes = shown.map((content) => movie.nodeOf(content));
  const start = movie.parent[nodes[0]];
  const space = movie.parent[start] ? "" : movie.roots[start] || "";
  return { block, group: movie.groupOf(shown[0]), start, end: nodes[nodes.length - 1], tokens: nodes.map((node) => movie.token[node]), space, below: [] };
}

function indexList(app, lane, after, entries, budget) {
  const items = [];
  for (const entry of entries) {
    if (budget.left <= 0) break;
    budget.left -= 1;
    const holders = after.holders(entry.block);
    const held = holders.length ? holders.map((seq) => sequenceTag(seq)) : [h("span", { class: "quiet" }, "nobody")];
    const tokens = entry.tokens.length ? numbers(entry.tokens, 16) : "holds nothing";
    items.push(
      h(
        "li",
        {},
        blockChip(app, lane, entry.block, after.name(entry.block)),
        h("code", { class: entry.tokens.length ? "" : "alarm" }, `${entry.space ? `${entry.space} ` : ""}${tokens}`),
        held,
        entry.below.length ? indexList(app, lane, after, entry.below, budget) : null,
      ),
    );
  }
  return h("ul", { class: "tree" }, items);
}

/** Blocks whose count in the books is not the number of sequences that list them. */
function countsPanel(app, lane, after) {
  if (!lane.movie.picture.books.includes("refcounts")) return h("p", { class: "quiet" }, "This cache keeps no reference counts.");
  const listed = new Int32Array(after.count.length);
  for (const sequence of after.sequences.values()) {
    for (const table of sequence.tables) for (const block of table) if (block !== NO_BLOCK) listed[block] += 1;
  }
  const rows = [];
  let agreeing = 0;
  listed.forEach((count, block) => {
    if (count === after.count[block]) agreeing += count > 0 ? 1 : 0;
    else rows.push(countRow(app, lane, after, block, count));
  });
  const words = !agreeing && !rows.length ? "Nobody holds a block, and no count says so." : `${counted(agreeing, "held block")} ${agreeing === 1 ? "has" : "have"} as many holders as the cache counts.`;
  if (!rows.length) return h("p", { class: "quiet" }, words);
  const head = h("tr", {}, ["block", "tables", "cache"].map((title) => h("th", { scope: "col" }, title)));
  const pins = "Device work may hold blocks beyond the tables that list them.";
  return h("div", {}, h("table", {}, h("thead", {}, head), h("tbody", {}, rows)), h("p", { class: "quiet" }, `${words} ${pins}`));
}

function countRow(app, lane, after, block, count) {
  return h("tr", {}, h("td", {}, blockChip(app, lane, block, after.name(block))), h("td", {}, String(count)), h("td", { class: "unequal" }, `≠ ${after.count[block]}`));
}

// Model and cache side by side: for each live sequence the tokens that the model knows, and below them, block by block, what the cache's
// table leads to, slot by slot. Where the two part, the cell is marked; the first such cell is named.

const WHOLE_TABLE = 10; // longer tables show their beginning, their end, and what matters between
const TABLE_ENDS = [2, 5];
const OPEN_SEQUENCES = 8; // with more live sequences, those that the step does not touch are folded

function sequenceTag(seq) {
  const tag = h("span", { class: "seq" }, `s${seq}`);
  tag.style.background = css(holderColour(seq));
  tag.style.color = inkOn(holderColour(seq));
  tag.title = `sequence ${seq}`;
  return tag;
}

function blockChip(app, lane, block, name) {
  const accused = lane.accuses(block, app.time);
  const chip = h("button", { type: "button", class: `chip${accused ? " accused" : ""}`, title: `Show the history of block ${block}` }, name);
  chip.addEventListener("click", () => app.choose(lane, block));
  return chip;
}

/** The panel of all live sequences. */
function sequencesPanel(app, lane, before, after) {
  const sequences = [...after.sequences.values()].sort((a, b) => a.seq - b.seq);
  if (!sequences.length) return h("p", { class: "quiet" }, "No sequence is alive.");
  const context = { app, lane, after, first: firstDifference(lane, after, app.time) };
  return h(
    "div",
    { class: "sequences" },
    sequences.map((sequence) => {
      const changed = before.sequences.get(sequence.seq) !== sequence;
      const matters = changed || (context.first && context.first.seq === sequence.seq);
      return sequenceCard(context, sequence, changed, sequences.length <= OPEN_SEQUENCES || matters);
    }),
  );
}

function sequenceCard(context, sequence, changed, open) {
  const { movie } = context.lane;
  const space = movie.namespace(sequence.node);
  const facts = [`${thousands(sequence.computed)} of ${counted(sequence.known, "token")} computed`];
  if (sequence.out) facts.push(passWords(sequence.out));
  if (sequence.swapped) facts.push("swapped out");
  if (sequence.leftOut) facts.push("not judged: a fault before accuses it");
  if (space) facts.push(space);
  const accused = context.lane.accusesSequence(sequence.seq, context.app.time);
  const card = h(
    "details",
    { class: `sequence${changed ? " changed" : ""}${accused ? " accused" : ""}`, open },
    h("summary", {}, sequenceTag(sequence.seq), h("span", {}, facts.join(" · "))),
  );
  const fill = () => {
    if (card.childElementCount === 1 && card.open) sequence.tables.forEach((_, group) => card.append(groupTable(context, sequence, group)));
  };
  card.style.setProperty("--holder", css(holderColour(sequence.seq)));
  card.addEventListener("toggle", fill);
  fill();
  return card;
}

/** The nodes of all positions that a sequence knows or drafts. */
function positionsOf(movie, sequence) {
  const nodes = movie.path(sequence.node, sequence.known);
  const drafts = sequence.out ? sequence.out[2] - sequence.out[1] : 0;
  if (!drafts) return nodes;
  const all = new Int32Array(sequence.known + drafts);
  all.set(nodes);
  all.set(movie.path(sequence.out[3], drafts), sequence.known);
  return all;
}

function readableFrom(shape, computed) {
  return shape.window === null || shape.window === undefined ? 0 : Math.max(0, computed - shape.window + 1);
}

/** One place of a sequence: what the model expects there and what the cache's table leads to. */
function placeOf(context, sequence, group, nodes, position) {
  const { lane, after } = context;
  const shape = lane.movie.picture.groups[group];
  const index = Math.floor(position / shape.block_size);
  const block = sequence.tables[group][index];
  const listed = block !== undefined && block !== NO_BLOCK;
  const slot = listed ? block * lane.movie.stride + (position % shape.block_size) : -1;
  const content = listed ? after.slots[slot] : 0;
  const expected = position < nodes.length ? nodes[position] * lane.movie.groups + group : 0;
  const readable = position >= readableFrom(shape, sequence.computed) && position < sequence.computed && !sequence.swapped;
  const judged = !sequence.leftOut && !(listed && after.blockState[block] === ASIDE); // what a fault before accuses is no fault of its own
  return { position, block, listed, content, expected, readable, wrong: readable && judged && content !== expected };
}

/** The first place at which the cache does not show what the model knows: what the violation names, else the first one of all. */
function firstDifference(lane, after, time) {
  const found = lane.faultsAt(time).flatMap((fault) => fault.differences);
  return found.find((difference) => typeof difference.position === "number") || null;
}

function groupTable(context, sequence, group) {
  const { movie } = context.lane;
  const shape = movie.picture.groups[group];
  const nodes = positionsOf(movie, sequence);
  const table = sequence.tables[group];
  const blocks = Math.max(table.length, Math.ceil(nodes.length / shape.block_size));
  const row = h("div", { class: "blocks" }, h("div", { class: "rowheads", "aria-hidden": "true" }, h("span", {}, "model"), h("span", {}, "cache"), h("span", {}, "table")));
  const key = `${context.lane.index}/${sequence.seq}/${group}`;
  for (const part of shownBlocks(context, sequence, group, nodes, blocks, key)) {
    row.append(part.gap ? gapButton(context.app, key, part.gap) : blockColumn(context, sequence, group, nodes, part.index));
  }
  const title = movie.groups > 1 ? h("h4", {}, `group ${group}: ${shape.kind.replace("_", " ")}${shape.window ? ` of ${shape.window}` : ""}`) : null;
  return h("div", { class: "group" }, title, row);
}

/** Which blocks of a long table are shown: the ends, and those that hold a wrong position. */
function shownBlocks(context, sequence, group, nodes, blocks, key) {
  if (blocks <= WHOLE_TABLE || context.app.expanded.has(key)) return Array.from({ length: blocks }, (_, index) => ({ index }));
  const size = context.lane.movie.picture.groups[group].block_size;
  const keep = new Set();
  for (let index = 0; index < blocks; index += 1) if (index < TABLE_ENDS[0] || index >= blocks - TABLE_ENDS[1]) keep.add(index);
  for (let position = 0; position < sequence.computed; position += 1) {
    if (placeOf(context, sequence, group, nodes, position).wrong) keep.add(Math.floor(position / size));
    if (keep.size > 2 * WHOLE_TABLE) break;
  }
  const parts = [];
  let hidden = 0;
  for (let index = 0; index <= blocks; index += 1) {
    if (index < blocks && !keep.has(index)) hidden += 1;
    else {
      if (hidden) parts.push({ gap: hidden });
      hidden = 0;
      if (index < blocks) parts.push({ index });
    }
  }
  return parts;
}

function gapButton(app, key, hidden) {
  const open = () => {
    app.expanded.add(key);
    app.render();
  };
  return h("button", { type: "button", class: "gap", onclick: open, "aria-label": `Show ${counted(hidden, "more block")}` }, `… ${counted(hidden, "block")} …`);
}

function blockColumn(context, sequence, group, nodes, index) {
  const { app, lane, after } = context;
  const size = lane.movie.picture.groups[group].block_size;
  const block = sequence.tables[group][index];
  const listed = block !== undefined && block !== NO_BLOCK;
  const places = Array.from({ length: size }, (_, offset) => placeOf(context, sequence, group, nodes, index * size + offset));
  const chip = listed ? blockChip(app, lane, block, after.name(block)) : h("span", { class: "chip none" }, block === NO_BLOCK ? "skipped" : "no block");
  return h(
    "div",
    { class: `column${places.some((place) => place.wrong) ? " wrong" : ""}` },
    h("div", { class: "cells" }, places.map((place) => modelCell(lane.movie, sequence, nodes, place))),
    h("div", { class: "cells" }, places.map((place) => cacheCell(context, sequence, group, place))),
    chip,
  );
}

function modelCell(movie, sequence, nodes, { position }) {
  if (position >= nodes.length) return h("i", { class: "cell-m beyond" });
  const token = movie.token[nodes[position]];
  const kind = position >= sequence.known ? "draft" : position < sequence.computed ? "computed" : "known";
  const words = { draft: "a draft", computed: "computed", known: "known, not computed" }[kind];
  return h("i", { class: `cell-m ${kind}`, title: `position ${position}: token ${token}, ${words}` }, shortToken(token));
}

function cacheCell(context, sequence, group, place) {
  const { movie } = context.lane;
  if (!place.listed) return h("i", { class: `cell-c none${place.wrong ? " wrong" : ""}`, title: place.wrong ? `position ${place.position} is computed, and no block holds it` : "" }, place.wrong ? "✕" : "");
  const shown = place.content ? shortToken(movie.token[movie.nodeOf(place.content)]) : "·";
  const other = place.content && place.expected && place.content !== place.expected;
  const kind = place.wrong ? "wrong" : !place.content ? "empty" : other ? "other" : place.readable ? "own" : place.position < sequence.computed ? "passed" : "ahead";
  const title = `slot ${place.position % movie.picture.groups[group].block_size} of b${place.block}: ${movie.contentWords(place.content)}`;
  const first = context.first && place.wrong && context.first.seq === sequence.seq && context.first.position === place.position && (context.first.group || 0) === group;
  return h("i", { class: `cell-c ${kind}${first ? " first" : ""}`, title }, place.wrong ? `✕${shown}` : shown, first ? h("em", {}, "first difference") : null);
}

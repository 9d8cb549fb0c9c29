// What one step changed, in words, from the frame and the states before and after it.

const MOST_CHANGES = 60;

/** [{text, seq, block}]: every change of a step, sequences first. The text of a block is only made if it is shown: a step may let go of thousands. */
function changesOf(movie, row, before, after) {
  const frame = movie.picture.frames[row];
  const found = [];
  for (const change of frame.s || []) found.push(...sequenceChanges(movie, before, after, change[0]));
  for (const seq of frame.x || []) found.push({ seq, text: "is gone" });
  for (let i = 0; i < (frame.b || []).length; i += 5) found.push({ block: frame.b[i], name: after.name(frame.b[i]), text: () => blockChange(before, after, frame.b[i]) });
  found.push(...slotChanges(movie, after, frame.m || []));
  if (frame.f && frame.f.length) found.push({ what: "free list", text: freeChanges(before, frame.f) });
  found.push(...setChange("matchable", after, frame.c), ...setChange("retiring", after, frame.r));
  if (typeof frame.o === "number") found.push({ what: "device", text: `${counted(after.open, "step")} open` });
  return found;
}

function sequenceChanges(movie, before, after, seq) {
  const old = before.sequences.get(seq);
  const now = after.sequences.get(seq);
  if (!old) {
    const space = movie.namespace(now.node);
    return [{ seq, text: `is known: ${counted(now.known, "token")}${space ? `, ${space}` : ""}` }, ...tableChanges(before, after, null, now)];
  }
  const found = [];
  if (old.known !== now.known) found.push({ seq, text: `knows ${old.known} → ${now.known} tokens` });
  if (old.computed !== now.computed) found.push({ seq, text: `computed ${old.computed} → ${now.computed}` });
  found.push(...tableChanges(before, after, old, now));
  if (now.out && !old.out) found.push({ seq, text: passWords(now.out) });
  if (old.out && !now.out) found.push({ seq, text: "its pass is over" });
  if (old.out && now.out && old.out[4] !== now.out[4]) found.push({ seq, text: "its pass is launched" });
  if (old.swapped !== now.swapped) found.push({ seq, text: now.swapped ? "is swapped out" : "is swapped in" });
  return found.length ? found : [{ seq, text: "changed its tokens" }];
}

function passWords([start, knownEnd, end, , launched]) {
  const drafts = end > knownEnd ? `, ${end - knownEnd} of them drafts` : "";
  const place = end - start === 1 ? `position ${start}` : `positions ${start} to ${end - 1}`;
  return `${launched ? "a pass writes" : "a pass waits to write"} ${place}${drafts}`;
}

function tableChanges(before, after, old, now) {
  const found = [];
  now.tables.forEach((table, group) => {
    const had = old ? old.tables[group] : [];
    let kept = 0;
    while (kept < had.length && kept < table.length && had[kept] === table[kept]) kept += 1;
    const [went, came] = [had.slice(kept), table.slice(kept)];
    if (!went.length && !came.length) return;
    const where = now.tables.length > 1 ? ` of group ${group}` : "";
    const parts = [went.length ? `− ${tableWords(before, went)}` : "", came.length ? `+ ${tableWords(after, came)}` : ""];
    found.push({ seq: now.seq, text: `table${where} ${parts.filter(Boolean).join("  ")}`, block: came.find((block) => block !== NO_BLOCK) });
  });
  return found;
}

function tableWords(state, entries, most = 10) {
  const shown = entries.slice(0, most).map((block) => (block === NO_BLOCK ? "–" : state.name(block)));
  return shown.join(" ") + (entries.length > most ? ` … (${thousands(entries.length)} in all)` : "");
}

function blockChange(before, after, block) {
  const parts = [];
  const [was, is] = [describe(before, block), describe(after, block)];
  if (was !== is) parts.push(`${was} → ${is}`);
  if (before.count[block] !== after.count[block]) parts.push(`count ${before.count[block]} → ${after.count[block]}`);
  if (before.generation[block] !== after.generation[block]) parts.push("handed out anew");
  return parts.join(", ") || "changed";
}

function describe(state, block) {
  const kind = state.blockState[block];
  return kind === HELD || kind === SHARED ? `${STATE_WORDS[kind]} by ${state.holders(block).map((seq) => `s${seq}`).join(" ")}` : STATE_WORDS[kind];
}

/** Which slots were written or cleared, by block. */
function slotChanges(movie, after, runs) {
  const byBlock = new Map();
  for (let i = 0; i < runs.length; i += 3) {
    const block = Math.floor(runs[i] / movie.stride);
    const offset = runs[i] % movie.stride;
    const places = runs[i + 2] === 1 ? `${offset}` : `${offset}–${offset + runs[i + 2] - 1}`;
    const verb = runs[i + 1] ? "written" : "cleared";
    if (!byBlock.has(block)) byBlock.set(block, new Map());
    const verbs = byBlock.get(block);
    verbs.set(verb, [...(verbs.get(verb) || []), places]);
  }
  return [...byBlock].map(([block, verbs]) => ({
    block,
    name: after.name(block),
    text: [...verbs].map(([verb, places]) => `slot${places.length > 1 || places[0].includes("–") ? "s" : ""} ${places.join(", ")} ${verb}`).join("; "),
  }));
}

/** The changes of the free list one after another, each in the list that the one before left. */
function freeChanges(before, splices) {
  const order = before.free.slice();
  return splices
    .slice(0, MOST_CHANGES)
    .map(([at, gone, ...came]) => {
      const went = order.splice(at, gone, ...came);
      const where = at === 0 ? "at the front" : at + came.length >= order.length ? "at the end" : `at place ${at}`;
      return [signed("−", went), signed("+", came), where].filter(Boolean).join(" ");
    })
    .join(", ");
}

const signed = (sign, blocks) => (blocks.length ? `${sign} ${blocks.slice(0, 10).map((block) => `b${block}`).join(" ")}${blocks.length > 10 ? " …" : ""}` : "");

function setChange(what, after, changes) {
  const came = (changes || []).filter((change) => change > 0).map((change) => change - 1);
  const went = (changes || []).filter((change) => change < 0).map((change) => -change - 1);
  const parts = [came.length ? `+ ${tableWords(after, came)}` : "", went.length ? `− ${tableWords(after, went)}` : ""].filter(Boolean);
  return parts.length ? [{ what, text: parts.join("  ") }] : [];
}

/** The panel. */
function changesPanel(app, lane, before, after) {
  const row = lane.rowAt(app.time);
  if (!lane.owns(app.time)) return h("p", { class: "quiet" }, "This run has no such operation; its state is that of the step before.");
  if (lane.movie.isGap(row)) return h("p", { class: "quiet" }, "From here on only what began later is known: every other sequence, block and book is left out.");
  if (lane.movie.number(row) === null) return h("p", { class: "quiet" }, `This operation did not run (${lane.movie.answer(row)}).`);
  const changes = changesOf(lane.movie, row, before, after);
  if (!changes.length) return h("p", { class: "quiet" }, "Nothing that can be seen.");
  const lines = changes.slice(0, MOST_CHANGES).map((change) => h("li", {}, changeSubject(app, lane, change), " ", typeof change.text === "function" ? change.text() : change.text));
  if (changes.length > MOST_CHANGES) lines.push(h("li", { class: "quiet" }, `… ${thousands(changes.length - MOST_CHANGES)} more`));
  return h("ul", { class: "changes" }, lines);
}

function changeSubject(app, lane, change) {
  if (change.what) return h("b", {}, change.what);
  if (change.seq !== undefined) return sequenceTag(change.seq);
  return blockChip(app, lane, change.block, change.name);
}

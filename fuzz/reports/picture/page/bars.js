// One run of a block on the map: a bar with its colour, its stripes and as much of its name as has room.

const SMALL_FONT = '10px ui-monospace, "DejaVu Sans Mono", Menlo, monospace';
const LARGE_FONT = '12px ui-monospace, "DejaVu Sans Mono", Menlo, monospace';

/** `bar`: the runs of a block, which of them, the block, and the place. */
function paintRun(pen, map, bar) {
  const { run, i, x, y, height } = bar;
  const state = run.state[i];
  const colour = cellColour(map.theme, state, run.holder[i]);
  const gap = map.stepWidth > 6 ? 1 : 0;
  const width = Math.max(1, bar.width - gap);
  const begins = i === 0 || run.generation[i] !== run.generation[i - 1] || run.state[i - 1] === FREE;
  const radius = begins && state !== FREE && map.rowHeight > 8 ? 4 : 0;
  for (const fill of [css(colour), map.stripes[state]].filter(Boolean)) {
    pen.fillStyle = fill;
    if (radius) {
      pen.beginPath();
      pen.roundRect(x, y, width, height, [radius, 0, 0, radius]);
      pen.fill();
    } else {
      pen.fillRect(x, y, width, height);
    }
  }
  if (map.rowHeight >= NAMED_ROW && state !== FREE) paintName(pen, map, bar, colour);
}

function paintName(pen, map, { run, i, block, x, y, width, height }, colour) {
  const state = run.state[i];
  const words = runWords(run, i, block, width);
  if (!words || width < 10) return;
  pen.font = map.rowHeight > 20 ? LARGE_FONT : SMALL_FONT;
  const wide = pen.measureText(words).width;
  if (wide > width - 4) return;
  if (map.stripes[state]) {
    pen.fillStyle = css(colour);
    pen.fillRect(x + 3, y + 2, wide + 4, height - 4);
  }
  pen.fillStyle = state === MISSING || state === NULL_BLOCK ? css(map.theme.card) : inkOn(colour);
  pen.textBaseline = "middle";
  pen.fillText(words, x + 5, y + height / 2 + 0.5);
}

/** The name of a run, as much of it as has room: `b7#3 · s1`. */
function runWords(run, i, block, width) {
  const state = run.state[i];
  if (STATE_MARKS[state] && width < 52) return STATE_MARKS[state];
  const name = blockName(block, run.generation[i]);
  if (state === ASIDE) return width < 84 ? STATE_MARKS[state] : `${name} *`;
  if ([MISSING, CONFLICT, NULL_BLOCK, UNKNOWN].includes(state)) return STATE_MARKS[state];
  if (state === CACHED || state === RETIRING) return name;
  const holder = state === SHARED ? `s${run.holder[i]}+` : `s${run.holder[i]}`;
  if (width < 40) return width > 22 ? holder : String(run.holder[i]);
  return width < 84 ? name : `${name} ${holder}`;
}

/** The state of a run in words. `who`: how a sequence is called. */
function runState(run, i, who = "sequence ") {
  const state = run.state[i];
  const held = state === HELD ? ` by ${who}${run.holder[i]}` : state === SHARED ? ` by ${who}${run.holder[i]} and others` : "";
  const count = run.count[i] ? `, count ${run.count[i]}` : "";
  return `${STATE_WORDS[state]}${held}${count}`;
}

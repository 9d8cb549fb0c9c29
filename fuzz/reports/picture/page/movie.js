// A run: its rows, the state after any of them, and for each block when its state changed.

const KEYFRAME_ROWS = 256;
const KEYFRAME_NUMBERS = 12e6; // all keyframes together: about 50 MB

class Movie {
  constructor(picture) {
    this.picture = picture;
    this.rows = picture.frames.length;
    this.stride = picture.stride;
    this.groups = picture.groups.length;
    this.decodeTree(picture.tree);
    this.build();
  }

  /** Parents of interned prefixes; node numbers only grow, so a parent comes before its children. */
  decodeTree({ back, tokens, roots }) {
    this.parent = Int32Array.from(back, (distance, node) => (distance ? node - distance : 0));
    this.token = tokens;
    this.roots = roots;
  }

  /** One pass over all frames: runs of each block, rows of each sequence, how full the pool was, keyframes. */
  build() {
    const { frames, num_blocks: blocks } = this.picture;
    const state = new State(this.picture);
    this.every = Math.max(KEYFRAME_ROWS, Math.ceil((this.rows * state.size) / KEYFRAME_NUMBERS));
    this.keyframes = [state.clone()];
    this.runs = Array.from({ length: blocks }, (_, block) => ({ at: [0], state: [state.blockState[block]], count: [0], generation: [0], holder: [-1] }));
    this.rowsOfSequence = new Map();
    const usage = new Uint32Array(STATE_WORDS.length);
    for (const one of state.blockState) usage[one] += 1;
    this.usage = new Uint32Array(this.rows * STATE_WORDS.length);
    for (let row = 0; row < this.rows; row += 1) {
      const frame = frames[row];
      const b = frame.b || [];
      for (let i = 0; i < b.length; i += 5) {
        usage[state.blockState[b[i]]] -= 1;
        usage[b[i + 1]] += 1;
        this.addRun(this.runs[b[i]], row, b, i);
      }
      state.apply(frame);
      this.usage.set(usage, row * STATE_WORDS.length);
      for (const change of frame.s || []) this.noteSequence(change[0], row);
      for (const seq of frame.x || []) this.noteSequence(seq, row);
      if ((row + 1) % this.every === 0) this.keyframes.push(state.clone());
    }
  }

  addRun(run, row, b, i) {
    if (run.at[run.at.length - 1] === row) for (const part of Object.values(run)) part.pop();
    run.at.push(row);
    run.state.push(b[i + 1]);
    run.count.push(b[i + 2]);
    run.generation.push(b[i + 3]);
    run.holder.push(b[i + 4]);
  }

  noteSequence(seq, row) {
    if (!this.rowsOfSequence.has(seq)) this.rowsOfSequence.set(seq, []);
    const rows = this.rowsOfSequence.get(seq);
    if (rows[rows.length - 1] !== row) rows.push(row);
  }

  /** The state after a row; -1 is the empty cache. A fresh object that the caller may keep. */
  stateAt(row) {
    const key = Math.min(Math.floor((row + 1) / this.every), this.keyframes.length - 1);
    const state = this.keyframes[key].clone();
    for (let at = key * this.every; at <= row; at += 1) state.apply(this.picture.frames[at]);
    return state;
  }

  /** Which run of a block a row lies in. */
  runAt(block, row) {
    return above(this.runs[block].at, row) - 1;
  }

  kind(row) {
    return this.picture.kind_names[this.picture.kinds[row]];
  }

  text(row) {
    return this.picture.texts[row];
  }

  answer(row) {
    return this.picture.answers[row];
  }

  /** The number of a step as reports have it; null for an operation that was skipped. */
  number(row) {
    return this.picture.numbers[row];
  }

  /** Whether operations are missing in place of this row. */
  isGap(row) {
    return (this.picture.gaps || []).includes(row);
  }

  label(row) {
    const number = row < 0 ? null : this.number(row);
    if (this.isGap(row)) return "the gap";
    return number === null || number === undefined ? "skipped" : `step ${thousands(number)}`;
  }

  /** The row of the step with this number; -1 where there is none. Numbers grow, and only skipped rows and gaps have none. */
  rowOf(number) {
    if (this.number(number) === number) return number;
    return this.picture.numbers.indexOf(number);
  }

  /** The broken laws in the order of the run: one for a program, for a trace the first fault of each law. */
  get faults() {
    return this.picture.faults || [];
  }

  /** Those that a row breaks. */
  faultsAt(row) {
    return this.faults.filter((fault) => fault.row === row);
  }

  /** The row that breaks the first law, -1 where none is broken. */
  violationRow() {
    return this.faults.length ? this.faults[0].row : -1;
  }

  // -- prefixes ---------------------------------------------------------------------------------------------------------------------------

  /** The nodes of the last `length` positions of a prefix that ends in `node`. */
  path(node, length) {
    const nodes = new Int32Array(length);
    for (let position = length - 1; position >= 0; position -= 1) {
      nodes[position] = node;
      node = this.parent[node];
    }
    return nodes;
  }

  /** All tokens of a prefix. */
  tokens(node) {
    const found = [];
    for (; this.parent[node]; node = this.parent[node]) found.push(this.token[node]);
    return found.reverse();
  }

  namespace(node) {
    while (this.parent[node]) node = this.parent[node];
    return this.roots[node] || "";
  }

  nodeOf(content) {
    return Math.floor(content / this.groups);
  }

  groupOf(content) {
    return content % this.groups;
  }

  /** What a slot shows, in words. */
  contentWords(content) {
    if (!content) return "nothing was written here";
    const node = this.nodeOf(content);
    const tokens = this.tokens(node);
    const space = this.namespace(node);
    const shown = tokens.length > 12 ? `… ${tokens.slice(-12).join(" ")}` : tokens.join(" ");
    return `token ${tokens[tokens.length - 1]} at position ${tokens.length - 1} of the prefix ${shown}${space ? ` (${space})` : ""}`;
  }
}

// The state of the cache, and of the model beside it, after one step. A frame is what one operation changed.

class State {
  constructor(picture) {
    this.stride = picture.stride;
    this.groups = picture.groups.length;
    this.sequences = new Map();
    this.blockState = new Uint8Array(picture.num_blocks);
    this.count = new Int32Array(picture.num_blocks);
    this.generation = new Int32Array(picture.num_blocks);
    this.holder = new Int32Array(picture.num_blocks).fill(-1);
    for (const block of picture.null_blocks) this.blockState[block] = NULL_BLOCK;
    this.slots = new Int32Array(picture.num_blocks * picture.stride);
    this.free = [];
    this.matchable = new Set();
    this.retiring = new Set();
    this.open = 0;
  }

  clone() {
    const copy = Object.create(State.prototype);
    copy.stride = this.stride;
    copy.groups = this.groups;
    copy.sequences = new Map(this.sequences); // a sequence is never changed, only replaced
    for (const part of ["blockState", "count", "generation", "holder", "slots", "free"]) copy[part] = this[part].slice();
    copy.matchable = new Set(this.matchable);
    copy.retiring = new Set(this.retiring);
    copy.open = this.open;
    return copy;
  }

  /** Numbers that a copy keeps: what a keyframe costs. */
  get size() {
    return this.slots.length + this.blockState.length * 4 + this.free.length + this.matchable.size;
  }

  apply(frame) {
    for (const change of frame.s || []) this.applySequence(change);
    for (const seq of frame.x || []) this.sequences.delete(seq);
    if (frame.m) this.applySlots(frame.m);
    const b = frame.b || [];
    for (let i = 0; i < b.length; i += 5) {
      const block = b[i];
      this.blockState[block] = b[i + 1];
      this.count[block] = b[i + 2];
      this.generation[block] = b[i + 3];
      this.holder[block] = b[i + 4];
    }
    for (const [at, gone, ...came] of frame.f || []) this.free.splice(at, gone, ...came);
    applySet(this.matchable, frame.c);
    applySet(this.retiring, frame.r);
    if (typeof frame.o === "number") this.open = frame.o;
  }

  applySequence([seq, known, computed, node, flags, out, deltas]) {
    const old = this.sequences.get(seq);
    const tables = deltas.map(([kept, ...entries], group) => (old ? old.tables[group].slice(0, kept).concat(entries) : entries));
    this.sequences.set(seq, { seq, known, computed, node, swapped: Boolean(flags & SWAPPED), leftOut: Boolean(flags & LEFT_OUT), out, tables });
  }

  applySlots(runs) {
    for (let i = 0; i < runs.length; i += 3) {
      const [slot, content, length] = [runs[i], runs[i + 1], runs[i + 2]];
      for (let k = 0; k < length; k += 1) this.slots[slot + k] = content ? content + k * this.groups : 0;
    }
  }

  name(block) {
    return blockName(block, this.generation[block]);
  }

  /** The sequences whose tables list a block, in any group. */
  holders(block) {
    const found = [];
    for (const sequence of this.sequences.values()) {
      if (sequence.tables.some((table) => table.includes(block))) found.push(sequence.seq);
    }
    return found;
  }
}

/** block + 1 joins, -(block + 1) leaves. */
function applySet(set, changes) {
  for (const change of changes || []) {
    if (change > 0) set.add(change - 1);
    else set.delete(-change - 1);
  }
}

// Two runs beside each other: where they differ.

/** The times at which one run has no such operation, or answers, block tables or computed tokens differ. */
function differingTimes(app) {
  const [a, b] = app.lanes;
  const found = [];
  for (let time = 0; time < app.times; time += 1) {
    if (!a.owns(time) || !b.owns(time) || !sameRow(a.movie, a.rowAt(time), b.movie, b.rowAt(time))) found.push(time);
  }
  return found;
}

/** Whether two rows say the same: operation, answer, and what they changed of sequences. */
function sameRow(one, row, other, otherRow) {
  if (one.text(row) !== other.text(otherRow) || one.answer(row) !== other.answer(otherRow)) return false;
  const changes = (movie, at) => JSON.stringify((movie.picture.frames[at].s || []).map(([seq, known, computed, , flags, out, tables]) => [seq, known, computed, flags, out && out.slice(0, 3), tables]));
  return changes(one, row) === changes(other, otherRow);
}

// Small helpers that every part uses: elements, numbers, and how blocks, states and tokens are called.

const byId = (id) => document.getElementById(id);

/** An element: h("button", {class: "chip", onclick: f}, "text", child). A null attribute or child is left out. */
function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
const GROUPED = new Intl.NumberFormat("en"); // made once: a formatter for each number takes a tenth of a step's time
const thousands = (value) => GROUPED.format(value);
const counted = (count, noun) => `${thousands(count)} ${noun}${count === 1 ? "" : "s"}`;

/** b7#3: block 7 as it was handed out for the third time; a block that never was is b7. */
const blockName = (block, generation) => (generation ? `b${block}#${generation}` : `b${block}`);

const STATE_WORDS = ["free", "free, matchable", "held", "shared", "retiring", "null block", "in no list", "held and free", "not known", "set aside"];

const FREE = 0;
const CACHED = 1;
const HELD = 2;
const SHARED = 3;
const RETIRING = 4;
const NULL_BLOCK = 5;
const MISSING = 6;
const CONFLICT = 7;
const UNKNOWN = 8;
const ASIDE = 9; // a fault before accuses it: no law is asked of it any more

/** A state without colour: what stands in a cell. */
const STATE_MARKS = ["", "c", "", "", "r", "–", "?", "!", "~", "*"];

const NO_BLOCK = -1;
const SWAPPED = 1;
const LEFT_OUT = 2;

/** A token in a narrow cell: the end of a long number. */
const shortToken = (token) => (token < 10000 ? String(token) : `…${String(token).slice(-3)}`);

/** Numbers with blanks between; runs of more than four equal ones are counted, and long lists are cut. */
function numbers(values, most = 24) {
  const parts = [];
  for (let at = 0; at < values.length; ) {
    let end = at;
    while (end < values.length && values[end] === values[at]) end += 1;
    if (end - at > 4) parts.push(`${values[at]} ×${end - at}`);
    else for (let i = at; i < end; i += 1) parts.push(String(values[i]));
    at = end;
    if (parts.length > most) return `${parts.slice(0, most).join(" ")} … (${thousands(values.length)} in all)`;
  }
  return parts.join(" ");
}

/** The first index of a sorted list whose value is above `value`. */
function above(sorted, value) {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

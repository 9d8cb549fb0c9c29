// Colours: one for each holder, from a list that people who confuse red and green can tell apart too; red is kept for the broken law.

const HOLDER_COLOURS = [
  [78, 121, 199], [232, 150, 61], [89, 161, 96], [160, 112, 190], [64, 172, 178], [214, 178, 58],
  [206, 122, 158], [150, 117, 92], [104, 140, 224], [140, 180, 72], [92, 92, 150], [120, 190, 150],
];

const holderColour = (seq) => HOLDER_COLOURS[((seq % HOLDER_COLOURS.length) + HOLDER_COLOURS.length) % HOLDER_COLOURS.length];
const css = ([red, green, blue], alpha = 1) => `rgba(${red},${green},${blue},${alpha})`;
const mix = (a, b, part) => a.map((value, index) => Math.round(value + (b[index] - value) * part));

/** Black or white, whichever can be read on a colour. */
const inkOn = ([red, green, blue]) => (red * 0.299 + green * 0.587 + blue * 0.114 > 140 ? "#14161a" : "#ffffff");

/** The colours of the theme as [red, green, blue]; canvases need numbers. */
function themeColours() {
  const style = getComputedStyle(document.documentElement);
  const names = ["paper", "card", "ink", "quiet", "line", "alarm", "amber", "accent", "free"];
  return Object.fromEntries(names.map((name) => [name, fromHex(style.getPropertyValue(`--${name}`).trim())]));
}

const fromHex = (text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));

/** The colour of a cell where there is no room for patterns. */
function cellColour(theme, state, holder) {
  if (state === HELD) return holderColour(holder);
  if (state === SHARED) return mix(holderColour(holder), theme.ink, 0.3);
  if (state === CACHED) return holder < 0 ? mix(theme.card, theme.quiet, 0.35) : mix(holderColour(holder), theme.card, 0.68);
  if (state === RETIRING) return theme.amber;
  if (state === NULL_BLOCK) return theme.line;
  if (state === MISSING) return theme.quiet;
  if (state === CONFLICT) return theme.alarm;
  if (state === ASIDE) return holder < 0 ? mix(theme.card, theme.quiet, 0.3) : mix(holderColour(holder), theme.card, 0.55);
  if (state === UNKNOWN) return mix(theme.card, theme.quiet, 0.18);
  return theme.free;
}

/** Stripes, so that a state can be told without colour. `kind`: "rise", "cross", "level" or "dots". */
function pattern(context, kind, colour) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const pen = tile.getContext("2d");
  pen.strokeStyle = pen.fillStyle = colour;
  pen.lineWidth = 1.5;
  pen.beginPath();
  if (kind === "dots") pen.fillRect(3, 3, 2, 2);
  if (kind === "rise" || kind === "cross") for (const shift of [-8, 0, 8]) { pen.moveTo(shift, 8); pen.lineTo(shift + 8, 0); }
  if (kind === "cross") for (const shift of [-8, 0, 8]) { pen.moveTo(shift, 0); pen.lineTo(shift + 8, 8); }
  if (kind === "level") { pen.moveTo(0, 4); pen.lineTo(8, 4); }
  pen.stroke();
  return context.createPattern(tile, "repeat");
}

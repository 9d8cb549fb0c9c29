// The keys, and the dialog that tells them.

const KEYS = [
  ["← →", "one step back, forwards", { ArrowLeft: "back", ArrowRight: "forward", ",": "back", ".": "forward" }],
  ["Shift ← →", "ten steps", {}],
  ["Page ↑ ↓", "a hundred steps", { PageUp: "farBack", PageDown: "farForward" }],
  ["Home End", "first, last step", { Home: "first", End: "last" }],
  ["space", "play, stop", { " ": "play" }],
  ["v V", "the step that breaks a law: the next one, the one before", { v: "violation", V: "violationBefore" }],
  ["d", "the next difference of two runs", { d: "difference" }],
  ["↑ ↓", "choose a block, on the map", {}],
  ["[ ]", "where the chosen block changed, changes next", { "[": "changedBefore", "]": "changedNext" }],
  ["/", "search; then Enter, or n and N, for the next match", { "/": "search", n: "nextHit", N: "lastHit" }],
  ["+ − 0", "zoom; Ctrl and the wheel on the map do it too", { "+": "in", "=": "in", "-": "out", 0: "fit" }],
  ["r", "rows tall enough for names, or all blocks in sight", { r: "tall" }],
  ["c", "copy the program", { c: "copy" }],
  ["l", "copy a link to this step", { l: "link" }],
  ["t", "light or dark", { t: "theme" }],
  ["?", "this help", { "?": "help" }],
];

function listenToKeys(app) {
  const actions = Object.assign({}, ...KEYS.map(([, , keys]) => keys));
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
    const { target } = event;
    if (target.matches("input:not([type=range])")) return;
    if (event.key === " " && target.matches("button, summary")) return;
    const far = event.shiftKey && { ArrowLeft: -10, ArrowRight: 10 }[event.key];
    const listed = target === app.list.element && { ArrowUp: -1, ArrowDown: 1 }[event.key];
    const action = actions[event.key];
    if (!far && !listed && !action) return;
    event.preventDefault();
    if (far || listed) app.go(app.time + (far || listed));
    else app.actions[action]();
  });
}

function helpDialog() {
  const rows = KEYS.map(([keys, words]) => h("tr", {}, h("th", { scope: "row" }, h("kbd", {}, keys)), h("td", {}, words)));
  const close = h("form", { method: "dialog" }, h("button", { class: "close", "aria-label": "Close" }, "×"));
  const signs = h(
    "dl",
    {},
    [
      ["b7#3", "block 7, as it was handed out for the third time"],
      ["s1", "sequence 1"],
      ["s1+", "sequence 1 and others share the block"],
      ["c", "free, and its content is matchable"],
      ["r", "retiring: nobody holds it, device work may still touch it"],
      ["?", "in no list of the books"],
      ["!", "held, and on the free list"],
      ["*", "set aside: a fault before accuses it, and what else it shows may be a consequence"],
    ].flatMap(([sign, words]) => [h("dt", {}, sign), h("dd", {}, words)]),
  );
  byId("help").append(close, h("h2", { id: "help-title" }, "Keys"), h("table", {}, h("tbody", {}, rows)), h("h2", {}, "Signs"), signs);
}

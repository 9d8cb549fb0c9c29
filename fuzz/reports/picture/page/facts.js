// What does not change with the step: the broken law and its reason, the program to copy, the cases of kernels, the table of laws.

const VERDICT_WORDS = { held: "held", broken: "broken", error: "not judged", "not-exercised": "not exercised", "not-applicable": "not applicable", waived: "waived" };

/** The times at which any of the runs breaks a law, in order. */
const faultTimes = (lanes) => [...new Set(lanes.flatMap((lane) => lane.movie.faults.map((fault) => lane.timeOf(fault.row))))].sort((a, b) => a - b);

/** The fault that is told in full: the one at this time, or the last one before it, or the first. */
function toldFault(app, lane) {
  const { faults } = lane.movie;
  return faults.filter((fault) => lane.timeOf(fault.row) <= app.time).pop() || faults[0];
}

/** The law, its sentence, the reason, and the first difference between model and cache. */
function accusationPanel(app, lane) {
  const { trouble, note } = lane.movie.picture;
  const name = app.comparing ? h("p", { class: "quiet" }, `${"AB"[lane.index]}: ${lane.movie.picture.name}`) : null;
  if (trouble) return h("div", { class: "charge" }, name, h("h2", {}, "The cache could not be judged"), h("p", {}, trouble));
  const fault = toldFault(app, lane);
  if (!fault) return note ? h("div", { class: "charge" }, name, h("p", {}, withCode(note))) : null;
  return h(
    "div",
    { class: "charge" },
    name,
    lane.movie.faults.length > 1 ? faultList(app, lane, fault) : null,
    h("h2", {}, h("span", { class: "law" }, fault.law), " is broken at ", faultLink(app, lane, fault)),
    h("p", { class: "sentence" }, h("b", {}, "The law. "), withCode(fault.sentence)),
    h("p", { class: "reason" }, h("b", {}, "The reason. "), reasonText(fault.reason)),
    fault.began.length ? beganIn(app, lane, fault.began) : null,
    fault.differences.length ? differencesTable(fault.differences) : null,
    note ? h("p", { class: "quiet" }, withCode(note)) : null,
  );
}

/** A link to the step of a fault, that can be copied and sent. */
function faultLink(app, lane, fault) {
  const go = (event) => {
    event.preventDefault();
    app.go(lane.timeOf(fault.row));
  };
  return h("a", { class: "link", href: app.comparing ? `#line=${lane.timeOf(fault.row) + 1}` : `#step=${fault.step}${app.run ? `&run=${app.run}` : ""}`, onclick: go }, `step ${thousands(fault.step)}`);
}

/** All faults of a trace, each with a link; the one that is told in full is marked. */
function faultList(app, lane, told) {
  const items = lane.movie.faults.map((fault) =>
    h("li", { class: fault === told ? "told" : "", "aria-current": fault === told ? "true" : null }, faultLink(app, lane, fault), " ", h("span", { class: "law" }, fault.law)),
  );
  return h("nav", { class: "faults", "aria-label": "Faults" }, h("b", {}, counted(items.length, "fault")), h("ol", {}, items));
}

/** Links to the earlier steps in which the violation began. */
function beganIn(app, lane, rows) {
  const links = rows.map((row) => h("button", { type: "button", class: "link", onclick: () => app.go(lane.timeOf(row)) }, lane.movie.label(row)));
  return h("p", { class: "began" }, h("b", {}, "It began in "), links.flatMap((link, index) => (index ? [", ", link] : [link])), ".");
}

/** A sentence in which `words` are code. */
const withCode = (sentence) => sentence.split("`").map((part, index) => (index % 2 ? h("code", {}, part) : part));

const reasonText = (reason) => `${reason.charAt(0).toUpperCase()}${reason.slice(1)}${/[.!?]$/.test(reason) ? "" : "."}`;

function differencesTable(differences) {
  const line = (difference, index) =>
    h("tr", { class: index ? "" : "first" }, h("th", { scope: "row" }, difference.where), h("td", {}, difference.model), h("td", {}, difference.cache));
  const head = h("thead", {}, h("tr", {}, ["first difference", "the model knows", "the cache shows"].map((title) => h("th", { scope: "col" }, title))));
  const table = (from, to) => h("tbody", {}, differences.slice(from, to).map((difference, index) => line(difference, from + index)));
  const rest = differences.length - 1;
  const more = rest ? h("details", {}, h("summary", {}, `${counted(rest, "more difference")}`), h("table", { class: "differences" }, table(1))) : null;
  return h("div", {}, h("table", { class: "differences" }, head, table(0, 1)), more);
}

function programPanel(app) {
  const panels = app.lanes
    .filter((lane) => lane.movie.picture.program)
    .map((lane) => {
      const { source, program, name } = lane.movie.picture;
      const title = app.comparing ? `The program of ${name}` : "The program";
      return h("section", {}, h("h2", {}, title), source ? copyable(app, "as a test that stands alone", source) : null, copyable(app, "as a failure file", program, !source));
    });
  return panels;
}

function copyable(app, title, text, open = true) {
  const button = h("button", { type: "button", class: "copy", onclick: () => app.copy(text, `the program ${title}`) }, "Copy");
  button.setAttribute("aria-label", `Copy the program ${title}`);
  return h("details", { class: "copyable", open }, h("summary", {}, title), button, h("pre", { tabindex: "0" }, h("code", {}, text)));
}

function casesPanel(app, cases) {
  return (cases || []).map((one) =>
    h("section", {}, h("h2", {}, h("span", { class: "law" }, one.law), " is broken"), h("p", {}, withCode(one.sentence)), h("p", {}, reasonText(one.reason)), copyable(app, "as a case", one.case), copyable(app, "as a test that stands alone", one.source)),
  );
}

function lawsPanel(laws, summary) {
  const names = Object.keys(laws || {});
  if (!names.length) return null;
  const rows = names.map((name) =>
    h("tr", { class: laws[name].verdict }, h("td", {}, name), h("td", {}, VERDICT_WORDS[laws[name].verdict]), h("td", {}, laws[name].exercised ? thousands(laws[name].exercised) : "")),
  );
  const head = h("tr", {}, ["law", "verdict", "exercised"].map((title) => h("th", { scope: "col" }, title)));
  return h("section", {}, h("h2", {}, "The laws"), h("p", { class: "quiet" }, summary || ""), h("table", { class: "laws" }, h("thead", {}, head), h("tbody", {}, rows)));
}

/** Everything around the map that does not change with the step. */
function tellFacts(app) {
  const { title, laws, summary, cases } = app.document;
  const { picture } = app.lanes[0].movie;
  byId("title").textContent = title;
  const broken = app.faultTimes.length > 0;
  const trouble = app.lanes.some((lane) => lane.movie.picture.trouble);
  const gaps = app.lanes.some((lane) => (lane.movie.picture.gaps || []).length);
  const kind = broken ? "broken" : trouble || gaps ? "error" : "held";
  byId("verdict").className = `verdict ${kind}`;
  byId("verdict").textContent = { broken: "✕ broken", error: trouble ? "! not judged" : "! judged in part", held: "✓ held" }[kind];
  byId("pool").textContent = `${counted(picture.num_blocks, "block")} of ${counted(picture.groups[0].block_size, "token")}, ${counted(picture.frames.length, "operation")}`;
  tellCharges(app);
  byId("accusation").classList.toggle("calm", kind === "held");
  byId("facts").replaceChildren(...programPanel(app), ...casesPanel(app, cases), lawsPanel(laws, summary) || "");
  const several = app.faultTimes.length > 1;
  document.querySelector('[data-do="violationBefore"]').hidden = !several;
  document.querySelector('[data-do="violation"]').hidden = !broken;
  document.querySelector('[data-do="violation"]').textContent = several ? "fault ›" : "violation";
  document.querySelector('[data-do="difference"]').hidden = !app.comparing;
  document.querySelector('[data-do="difference"]').textContent = `next of ${counted(app.differing.length, "difference")}`;
  tellRuns(app);
}

/** The charges: written anew only where another fault is told in full. */
function tellCharges(app) {
  const told = app.lanes.map((lane) => toldFault(app, lane));
  if (app.charged && app.charged.lanes === app.lanes && told.every((fault, index) => fault === app.charged.told[index])) return;
  app.charged = { lanes: app.lanes, told };
  const charges = app.lanes.map((lane) => accusationPanel(app, lane)).filter(Boolean);
  byId("accusation").hidden = !charges.length;
  byId("accusation").replaceChildren(...charges);
  if (app.list) app.list.fit();
}

function tellRuns(app) {
  const { pictures } = app.document;
  const several = pictures.length > 1 && !app.comparing;
  byId("runs").hidden = !several;
  if (!several) return;
  const tabs = pictures.map((picture, run) =>
    h("button", { type: "button", "aria-current": run === app.run ? "true" : null, onclick: () => app.change(run) }, picture.name),
  );
  byId("runs").replaceChildren(...tabs);
}

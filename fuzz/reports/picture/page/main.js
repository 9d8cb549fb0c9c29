// Reads the data and starts the page.

async function readData() {
  const element = byId("data");
  if (element.type === "application/json") return JSON.parse(element.textContent);
  const packed = Uint8Array.from(atob(element.textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

readData().then((data) => {
  // Where nothing ran (kernels, or a cache that cannot be built) there is no map, only what was found.
  if (data.pictures.length) new App(data).start();
  else showCases(data);
});

/** A page without any run: what was found, to be read and copied. */
function showCases(data) {
  for (const id of ["time", "search"]) byId(id).hidden = true;
  document.querySelector("main").hidden = true;
  byId("title").textContent = data.title;
  const app = new App(data);
  const broken = (data.cases || []).length;
  byId("verdict").className = `verdict ${broken ? "broken" : "held"}`;
  byId("verdict").textContent = broken ? "✕ broken" : "✓ held";
  byId("facts").replaceChildren(...casesPanel(app, data.cases), lawsPanel(data.laws, data.summary) || "");
  byId("theme").addEventListener("click", () => {
    const root = document.documentElement;
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  });
  byId("help-open").hidden = true;
  document.body.dataset.ready = "true";
}

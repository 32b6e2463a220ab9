// The bar's filters: one model, one benchmark, some methods. Tables are filtered here, charts by those who draw them.
const modelFilter = $("filter-model");
const benchmarkFilter = $("filter-benchmark");
const scorecards = all('script[id^="scores-"]').map((script) => unpack(script.id));

const showModels = () => {
  for (const view of all(".view")) view.hidden = modelFilter.value !== "" && view.dataset.model !== modelFilter.value;
};
modelFilter?.addEventListener("change", () => { showModels(); tell("model"); });

// The verdict over one benchmark in place of that over their mean.
const drawVerdicts = async (wanted) => {
  for (const view of all("#verdict .view")) {
    const [headline, findings] = (await scorecards[view.dataset.model]).verdicts[wanted] ?? ["", []];
    const block = view.querySelector(".by-benchmark");
    [block.hidden, view.querySelector(".overall").hidden] = [!headline, !!headline];
    block.querySelector(".headline").textContent = `On ${wanted}: ${headline}`;
    block.querySelector(".note").textContent = `${wanted} alone; choose all benchmarks for means, equal bytes and the best trades.`;
    block.querySelector(".findings").replaceChildren(...findings.map((found) => {
      const item = make("li", "", found.decided ? "decided" : "");
      const budget = make("span", ` ${found.kind}`, "budget");
      budget.prepend(make("b", found.budget));
      const said = make("div");
      said.append(make("h3", found.title), make("p", found.text));
      const open = Object.assign(make("button", "Samples", "open"), { type: "button" });
      Object.assign(open.dataset, { open: view.dataset.model, method: found.best, budget: found.budget, benchmark: wanted });
      item.append(budget, said, open);
      return item;
    }));
  }
};

const showBenchmarks = () => {
  const wanted = benchmarkFilter.value;
  drawVerdicts(wanted);
  for (const panel of all("[data-benchmark].panel")) panel.hidden = wanted !== "" && panel.dataset.benchmark !== wanted;
  tell("benchmark");
};
benchmarkFilter.addEventListener("change", showBenchmarks);

const filterRows = () => {
  for (const button of all("[data-toggle]")) {
    button.setAttribute("aria-pressed", String(!hiddenMethods.has(button.dataset.toggle)));
  }
  for (const row of all("tr[data-method]")) row.hidden = hiddenMethods.has(row.dataset.method);
  const boxes = all("#method-boxes input");
  $("filter-methods").querySelector("output").textContent =
    `${boxes.filter((box) => box.checked).length} of ${boxes.length}`;
};
listen("methods", filterRows);

const setMethod = (box, shown) => {
  box.checked = shown;
  hiddenMethods[shown ? "delete" : "add"](box.value);
};

const methodBox = (method) => {
  const label = make("label");
  const box = Object.assign(make("input"), { type: "checkbox", value: method, checked: true });
  box.addEventListener("change", () => { setMethod(box, box.checked); tell("methods"); });
  const swatch = make("i");
  swatch.style.setProperty("--swatch", METHOD_COLOURS[method]);
  label.append(box, swatch, method);
  return label;
};

for (const button of all("[data-toggle]")) {
  button.addEventListener("click", () => {
    const box = all("#method-boxes input").find((one) => one.value === button.dataset.toggle);
    setMethod(box, !box.checked);
    tell("methods");
  });
}
for (const button of all("[data-methods]")) {
  button.addEventListener("click", () => {
    all("#method-boxes input").forEach((box) => setMethod(box, button.dataset.methods === "all"));
    tell("methods");
  });
}
addEventListener("click", (event) => { // elsewhere: the list of methods closes
  const list = $("filter-methods");
  if (list.open && !list.contains(event.target)) list.open = false;
});
addEventListener("keydown", (event) => {
  const list = $("filter-methods");
  if (event.key !== "Escape" || !list.open) return;
  list.open = false;
  list.querySelector("summary").focus();
});

const METHOD_COLOURS = JSON.parse(document.body.dataset.colours);
const filled = (async () => {
  const cards = await Promise.all(scorecards);
  const benchmarks = unique(cards.flatMap((card) => card.benchmarks));
  fill(benchmarkFilter, [["", "all"], ...benchmarks.map((name) => [name, name])]);
  const methods = unique(cards.flatMap((card) => card.methods)).filter((method) => method !== FULL);
  $("method-boxes").replaceChildren(...methods.map(methodBox));
  filterRows();
})();

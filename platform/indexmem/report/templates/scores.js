// The table by benchmark, and the way from any cell to its samples.
const cellKey = (method, budget, benchmark) => `${method}\n${budget}\n${benchmark}`;
const lookups = scorecards.map(async (promise) => {
  const card = await promise;
  const cells = new Map();
  for (const [method, budget, benchmark, interval, n, standing, rival, lead, full] of card.cells) {
    const key = cellKey(card.methods[method], card.budgets[budget], benchmark < 0 ? "" : card.benchmarks[benchmark]);
    cells.set(key, { interval, n, standing: card.standings[standing], rival: card.methods[rival], lead, full });
  }
  const held = new Map(card.held.map(([method, budget, text]) => [`${card.methods[method]}\n${card.budgets[budget]}`, text]));
  return { card, cells, held };
});
const MARKS = { winner: ["★", "best by more than noise"], leading: ["≈", "within noise of the best"] };

const scoreCell = (cell, view, method, budget, benchmark) => {
  if (!cell) return make("td", "–", "missing");
  const td = make("td", "", cell.standing);
  const button = Object.assign(make("button", "", "cell"), { type: "button" });
  Object.assign(button.dataset, { open: view, method, budget, benchmark });
  const [mean, low, high] = cell.interval.map(points);
  button.append(make("b", mean));
  if (MARKS[cell.standing]) {
    const [sign, meaning] = MARKS[cell.standing];
    const mark = Object.assign(make("span", sign, "mark"), { title: meaning });
    button.append(mark, make("span", ` ${meaning}`, "unseen"));
  }
  button.append(make("small", `${low} to ${high}`));
  td.append(button);
  return td;
};

const rowHead = (text) => Object.assign(make("th", text), { scope: "row" });
const columnHead = (text) => Object.assign(make("th", text), { scope: "col" });

const drawByTask = async (block) => {
  const { card, cells, held } = await lookups[block.dataset.view];
  const budget = block.querySelector("select").value;
  const wanted = benchmarkFilter.value;
  const columns = card.benchmarks.filter((name) => !wanted || name === wanted);
  const shown = [...columns, ...(wanted ? [] : [""])];
  const head = make("tr");
  head.append(columnHead("Method"), ...shown.map((name) => columnHead(name || "mean")));
  const rows = card.methods.map((method) => {
    const row = make("tr", "", method === FULL ? "full" : "");
    if (method !== FULL) row.dataset.method = method;
    const at = method === FULL ? card.budgets.find((b) => cells.has(cellKey(FULL, b, columns[0]))) : budget;
    row.append(rowHead(methodName(method)));
    if (method !== FULL && held.has(`${method}\n${at}`)) row.firstChild.append(make("small", held.get(`${method}\n${at}`)));
    row.append(...shown.map((name) => scoreCell(cells.get(cellKey(method, at, name)), block.dataset.view, method, at, name)));
    row.hidden = hiddenMethods.has(method);
    return row;
  });
  const table = block.querySelector("table");
  const [thead, tbody] = [make("thead"), make("tbody")];
  thead.append(head);
  tbody.append(...rows.filter((row) => row.querySelector("button")));
  table.replaceChildren(make("caption", `Scores by benchmark at ${budget}, in %, with 95% intervals.`), thead, tbody);
};

// The table of means shows one benchmark where the page is filtered to it.
const drawOverview = async (table) => {
  const { card, cells, held } = await lookups[table.dataset.view];
  const wanted = benchmarkFilter.value;
  if (wanted && !card.benchmarks.includes(wanted)) return;
  const captions = table.caption.querySelector("b");
  captions.textContent = wanted || captions.dataset.mean;
  for (const row of table.querySelectorAll("tr[data-method]")) {
    const shown = [...row.querySelectorAll("td")].map((td) => {
      const { method, budget } = td.dataset;
      const next = scoreCell(cells.get(cellKey(method, budget, wanted)), table.dataset.view, method, budget, wanted);
      Object.assign(next.dataset, { method, budget, costly: td.dataset.costly });
      const small = make("small", held.get(`${method}\n${budget}`) ?? "", td.dataset.costly ? "costly" : "");
      next.querySelector("button")?.append(small);
      return next;
    });
    row.replaceChildren(row.firstElementChild, ...shown);
  }
  const full = table.querySelector("tr.full td");
  const cell = cells.get(cellKey(FULL, card.budgets.find((b) => cells.has(cellKey(FULL, b, wanted))), wanted));
  if (!full || !cell) return;
  full.querySelector("b").textContent = points(cell.interval[0]);
  full.querySelector("small").textContent = `${points(cell.interval[1])} to ${points(cell.interval[2])}`;
};

const overviews = all('[data-kind="overview"]');
const byTask = all(".by-task");
for (const block of byTask) {
  block.querySelector("select").addEventListener("change", () => drawByTask(block));
  drawByTask(block);
}
listen("benchmark", () => { byTask.forEach(drawByTask); overviews.forEach(drawOverview); });

addEventListener("click", (event) => {
  const from = event.target.closest?.("[data-open]");
  if (from) openSamples(from.dataset).then(() => remember("samples"));
});

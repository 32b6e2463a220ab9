// The samples of a cell beside those of another cell, sorted by the difference of their scores.
const see = Object.fromEntries(
  ["model", "benchmark", "method", "budget", "against", "order"].map((name) => [name, $(`see-${name}`)]),
);
const PAGE = 8;
let pairs = [];
let shownPairs = 0;

const viewNumber = () => see.model?.value ?? "0";
const groupIds = (view) => all(`script[id^="samples-${view}-"]`).map((script) => script.id);
const groupsOf = async (view, benchmark) => {
  const groups = await Promise.all(groupIds(view).map(unpack));
  return groups.filter((group) => !benchmark || group.benchmark === benchmark);
};
const cellOf = (group, method, budget) =>
  group.cells.find((cell) => cell.method === method && (method === FULL || cell.budget === budget));

const fillPickers = async (wanted = {}) => {
  const { card } = await lookups[viewNumber()];
  const names = card.methods.map((method) => [method, methodName(method)]);
  const budgets = card.budgets.filter((budget, i) => card.cells.some((cell) => cell[1] === i && card.methods[cell[0]] !== FULL));
  fill(see.benchmark, [["", "all benchmarks"], ...card.benchmarks.map((name) => [name, name])], wanted.benchmark ?? see.benchmark.value);
  fill(see.method, names, wanted.method ?? (see.method.value || card.methods[1]));
  fill(see.budget, (budgets.length ? budgets : card.budgets).map((b) => [b, b]), wanted.budget ?? see.budget.value);
  const cell = await statistics();
  const rival = wanted.against ?? cell?.rival ?? (card.methods[0] === FULL ? FULL : card.methods[1]);
  fill(see.against, names.filter(([name]) => name !== see.method.value), rival);
};

const statistics = async () => {
  const { card, cells } = await lookups[viewNumber()];
  const at = see.method.value === FULL ? card.budgets[0] : see.budget.value;
  return cells.get(cellKey(see.method.value, at, see.benchmark.value));
};

const pairUp = async () => {
  const groups = await groupsOf(viewNumber(), see.benchmark.value);
  pairs = groups.flatMap((group) => {
    const [mine, other] = [see.method, see.against].map((select) => cellOf(group, select.value, see.budget.value));
    if (!mine) return [];
    return group.ids.map((id, i) => {
      const [a, b] = [mine, other].map((cell) => (cell ? shareOf(cell.scores, i) : UNKNOWN));
      const known = a !== UNKNOWN && b !== UNKNOWN;
      return { group, id, i, mine, other, a, b, difference: known ? a - b : null, telling: (i in mine.said) + 2 * (keptOption(viewNumber(), id) !== undefined) };
    });
  });
  const value = {
    losses: (pair) => pair.difference ?? Infinity,
    wins: (pair) => -(pair.difference ?? -Infinity),
    size: (pair) => -Math.abs(pair.difference ?? 0),
    id: () => 0,
  }[see.order.value];
  pairs = pairs.map((pair, place) => [pair, place]).sort(([p, i], [q, j]) =>
    (value(p) - value(q) || 0) || q.telling - p.telling || i - j).map(([pair]) => pair);
};

const sayCell = async () => {
  const cell = await statistics();
  const [method, against] = [see.method, see.against].map((select) => methodName(select.value));
  const said = $("see-said");
  said.replaceChildren(make("b", `${method} at ${see.budget.value}`), ` on ${see.benchmark.value || "all benchmarks"}: `);
  if (!cell) return said.append("no mean, since samples are missing.");
  const [mean, low, high] = cell.interval.map(points);
  said.append(make("b", `${mean}%`), ` (95% interval ${low} to ${high}, n = ${cell.n}). `);
  const difference = see.against.value === FULL ? cell.full : see.against.value === cell.rival ? cell.lead : null;
  if (!difference) return;
  const [d, dLow, dHigh, p] = difference;
  const kind = see.against.value === FULL ? "" : "adjusted ";
  said.append(`${signed(d)} points against ${against} (${signed(dLow)} to ${signed(dHigh)}, ${kind}${pText(p)}).`);
};

const drawTally = () => {
  const known = pairs.filter((pair) => pair.difference !== null);
  const counts = [
    ["wins", known.filter((pair) => pair.difference > 0).length, "better"],
    ["ties", known.filter((pair) => pair.difference === 0).length, "equal"],
    ["losses", known.filter((pair) => pair.difference < 0).length, "worse"],
  ];
  $("see-tally").setAttribute("aria-label", counts.map(([, count, word]) => `${count} samples ${word}`).join(", "));
  $("see-tally").replaceChildren(...counts.filter(([, count]) => count).map(([name, count, word]) => {
    const part = make("span", `${count} ${word}`, name);
    part.style.flexGrow = count;
    return part;
  }));
};

const answer = (cell, pair, share, method) => {
  const block = make("div", "", "answer");
  const title = make("h4", methodName(method));
  title.append(make("span", share === UNKNOWN ? "no score" : `${share}%`, "share"));
  const text = cell && pair.i in cell.said ? pair.group.texts[cell.said[pair.i]] || "(empty)" : "not in this file";
  block.append(title, make("p", text, "verbatim"));
  return block;
};

const card = (pair) => {
  const item = make("li");
  const head = make("div", "", "sample-head");
  head.append(make("h3", pair.id, "verbatim"));
  if (pair.difference !== null) {
    const kind = pair.difference > 0 ? "wins" : pair.difference < 0 ? "losses" : "ties";
    head.append(make("span", pair.difference ? `${signed(pair.difference / 100)} points` : "equal", `chip ${kind}`));
  }
  const option = keptOption(viewNumber(), pair.id);
  const link = Object.assign(make("a", "link", "link"), { href: linkTo("samples", [...filtersNow(), ...shownNow(), ["sample", pair.id]]) });
  link.append(make("span", ` to ${pair.id}`, "unseen"));
  head.append(link);
  if (option && see.method.value !== FULL) {
    const button = Object.assign(make("button", "Kept tokens", "open"), { type: "button" });
    button.append(make("span", ` of ${pair.id}`, "unseen"));
    button.addEventListener("click", () => openKept(option, cellsNow()));
    head.append(button);
  }
  const reference = make("p", "Reference: ", "reference");
  reference.append(make("span", pair.group.references[pair.i] || "none", "verbatim"));
  const answers = make("div", "", "answers-pair");
  answers.append(answer(pair.mine, pair, pair.a, see.method.value), answer(pair.other, pair, pair.b, see.against.value));
  item.append(head, reference, answers);
  return item;
};

const cellsNow = () => ({ method: see.method.value, budget: see.budget.value, against: see.against.value });
const shownNow = () => Object.entries(see).map(([name, select]) => [name, name === "model" && select?.value === "0" ? "" : select?.value]);
keyed.samples = shownNow;

const showMore = (count = PAGE) => {
  $("see-list").append(...pairs.slice(shownPairs, shownPairs + count).map(card));
  shownPairs = Math.min(shownPairs + count, pairs.length);
  $("see-more").hidden = shownPairs >= pairs.length;
  $("see-more").textContent = `Show ${Math.min(PAGE, pairs.length - shownPairs)} more of ${pairs.length - shownPairs}`;
};

const exampleOption = () =>
  pairs.map((pair) => keptOption(viewNumber(), pair.id)).find((option) => option !== undefined);

const showSamples = async () => {
  await pairUp();
  shownPairs = 0;
  $("see-list").replaceChildren();
  await sayCell();
  drawTally();
  $("see-kept").hidden = !exampleOption() || see.method.value === FULL;
  showMore();
};

const reveal = (section) => {
  $(section).scrollIntoView();
  $(`${section}-title`).focus({ preventScroll: true });
};

// What tells most of a cell comes first: the wins of the best one, the losses of another one.
let turn = Promise.resolve(); // a cell is shown whole before the next one is
const showCell = (wanted) => (turn = turn.then(async () => {
  await fillPickers(wanted);
  const cell = await statistics();
  see.order.value = wanted.order ?? (cell?.lead && cell.lead[0] < 0 ? "losses" : "wins");
  await showSamples();
}));

const openSamples = async ({ open, method, budget, benchmark = "", against, order, sample }) => {
  if (see.model) see.model.value = open;
  await showCell({ method, budget, benchmark, against, order });
  const place = pairs.findIndex((pair) => pair.id === sample);
  if (place >= shownPairs) showMore(place + 1 - shownPairs);
  reveal("samples");
  const shown = $("see-list").children[place];
  shown?.classList.add("linked");
  shown?.scrollIntoView({ block: "center" });
};

$("see-more").addEventListener("click", () => showMore());
$("see-kept").addEventListener("click", () => openKept(exampleOption(), cellsNow()));
const chosen = (show) => async () => { await show(); remember("samples"); };
for (const name of ["model", "benchmark", "method", "budget"]) see[name]?.addEventListener("change", chosen(() => showCell({})));
for (const name of ["against", "order"]) see[name].addEventListener("change", chosen(showSamples));
listen("benchmark", () => showCell({ benchmark: benchmarkFilter.value }));
(async () => {
  const { card: first } = await lookups[0];
  await showCell({ budget: first.budgets.at(-1) });
  document.documentElement.dataset.samples = "shown";
})();

// The kept-token viewer: a strip of the whole context, a map of its layers, and the text around one place.
const picks = Object.fromEntries(["sample", "method", "budget", "layer"].map((name) => [name, $(`pick-${name}`)]));
const WINDOW = 2400; // tokens in the page at a time
const TRANSPARENT = 1.25; // so that a token that all heads kept still lets its text be read
let example = null;
let shares = ""; // percent per token of what is chosen, as characters
let first = 0; // of the window
let here = -1;

const keptOption = (view, id) =>
  [...(picks.sample?.options ?? [])].find((option) => option.dataset.model === view && option.dataset.id === id);

const openKept = async (option, method, budget) => {
  picks.sample.value = option.value;
  await showExample(method, budget);
  reveal("kept");
};

const chosenCell = () =>
  example.cells.find((cell) => cell.method === picks.method.value && cell.budget === picks.budget.value);

const showExample = async (method, budget) => {
  example = await unpack(picks.sample.value);
  here = -1;
  $("question").hidden = !example.question;
  $("question").lastElementChild.textContent = example.question;
  $("references").textContent = example.references || "none";
  const methods = unique(example.cells.map((cell) => cell.method));
  fill(picks.method, methods.map((name) => [name, name]), method);
  showMethod(budget);
};

const showMethod = (budget) => {
  const budgets = example.cells.filter((cell) => cell.method === picks.method.value).map((cell) => cell.budget);
  fill(picks.budget, budgets.map((name) => [name, name]), budget);
  showBudget();
};

const showBudget = () => {
  const layers = chosenCell().layers ?? [];
  fill(picks.layer, [["", "all"], ...layers.map((_, i) => [String(i), String(i)])]);
  picks.layer.parentElement.hidden = !layers.length;
  $("layers").hidden = !layers.length;
  const marked = example.marked[0] ?? 0;
  first = Math.max(0, Math.min(marked - WINDOW / 2, example.tokens.length - WINDOW));
  showShares();
  if (example.marked.length) scrollTo(marked);
};

const showShares = () => {
  const cell = chosenCell();
  shares = picks.layer.value === "" ? cell.kept : cell.layers[picks.layer.value];
  let sum = 0;
  for (let i = 0; i < shares.length; i++) sum += shareOf(shares, i);
  const whose = picks.layer.value === "" ? "" : ` in layer ${picks.layer.value}`;
  $("kept-total").textContent =
    `${shares.length.toLocaleString("en")} tokens, ${(sum / shares.length).toFixed(1)}% kept on average${whose}`;
  drawTokens();
  drawStrip();
  drawLayers(cell.layers ?? []);
};

const drawTokens = () => {
  const marks = new Set(example.marked);
  const spans = example.tokens.slice(first, first + WINDOW).map((text, offset) => {
    const span = make("span", text, marks.has(first + offset) ? "marked" : "");
    span.style.setProperty("--share", (shareOf(shares, first + offset) / 100 / TRANSPARENT).toFixed(3));
    return span;
  });
  const before = first ? [make("em", `… ${first.toLocaleString("en")} tokens before …`)] : [];
  const left = example.tokens.length - first - WINDOW;
  const after = left > 0 ? [make("em", `… ${left.toLocaleString("en")} tokens after …`)] : [];
  $("tokens").replaceChildren(...before, ...spans, ...after);
};

const prepared = (canvas, height) => {
  canvas.width = canvas.clientWidth * devicePixelRatio;
  canvas.height = height * devicePixelRatio;
  return canvas.getContext("2d");
};
const colourOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// One row of `canvas`: the mean share of the tokens under each pixel column.
const drawRow = (pen, text, width, top, height, keep) => {
  for (let x = 0; x < width; x++) {
    const from = Math.floor((x * text.length) / width);
    const to = Math.max(from + 1, Math.floor(((x + 1) * text.length) / width));
    let sum = 0;
    for (let i = from; i < to; i++) sum += shareOf(text, i);
    pen.fillStyle = `rgb(${keep} / ${sum / (to - from) / 100})`;
    pen.fillRect(x, top, 1, height);
  }
};

const drawStrip = () => {
  const strip = $("strip");
  const pen = prepared(strip, 30);
  drawRow(pen, shares, strip.width, 0, strip.height, colourOf("--keep"));
  pen.fillStyle = colourOf("--mark");
  const each = strip.width / shares.length;
  for (const i of example.marked) {
    pen.fillRect(i * each, strip.height * 0.8, Math.max(2 * devicePixelRatio, each), strip.height);
  }
};

const drawLayers = (layers) => {
  const canvas = $("layers");
  if (!layers.length) return;
  const row = Math.max(3, Math.min(8, Math.floor(180 / layers.length)));
  canvas.style.height = `${row * layers.length}px`;
  const pen = prepared(canvas, row * layers.length);
  const height = row * devicePixelRatio;
  const keep = colourOf("--keep");
  layers.forEach((text, layer) => drawRow(pen, text, canvas.width, layer * height, height, keep));
};

const spanOf = (index) => [...$("tokens").querySelectorAll("span")][index - first];
const scrollTo = (index) => {
  const span = spanOf(index);
  $("tokens").scrollTop = span.offsetTop - $("tokens").clientHeight / 2;
};

const point = (index, scroll) => {
  const next = Math.min(Math.max(index, 0), example.tokens.length - 1);
  if (next < first || next >= first + WINDOW) {
    first = Math.max(0, Math.min(next - WINDOW / 2, example.tokens.length - WINDOW));
    drawTokens();
  }
  all(".here", $("tokens")).forEach((span) => span.classList.remove("here"));
  here = next;
  spanOf(here).classList.add("here");
  if (scroll) scrollTo(here);
  $("readout").textContent =
    `Token ${here + 1}, ${JSON.stringify(example.tokens[here])}: kept by ${shareOf(shares, here)}% of heads`;
};

const placeOf = (event) => Math.floor((event.offsetX / event.target.clientWidth) * shares.length);

if (picks.sample) {
  picks.sample.addEventListener("change", () => showExample(picks.method.value, picks.budget.value));
  picks.method.addEventListener("change", () => showMethod(picks.budget.value));
  picks.budget.addEventListener("change", showBudget);
  picks.layer.addEventListener("change", showShares);
  $("tokens").addEventListener("mouseover", (event) => {
    if (event.target.tagName === "SPAN") point(first + all("span", $("tokens")).indexOf(event.target), false);
  });
  $("tokens").addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) { event.preventDefault(); point(here < 0 ? first : here + step, true); }
  });
  $("strip").addEventListener("click", (event) => point(placeOf(event), true));
  $("layers").addEventListener("click", (event) => {
    const { layers } = chosenCell();
    picks.layer.value = String(Math.floor((event.offsetY / event.target.clientHeight) * layers.length));
    showShares();
    point(placeOf(event), true);
  });
  addEventListener("resize", () => { if (example) { drawStrip(); drawLayers(chosenCell().layers ?? []); } });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => example && showShares());
  new IntersectionObserver(async (entries, self) => { // the text of an example is long: not before it is seen
    if (!entries.some((entry) => entry.isIntersecting)) return;
    self.disconnect();
    if (example) return;
    await showExample();
    picks.budget.selectedIndex = picks.budget.length - 1; // the smallest budget shows the most
    showBudget();
    document.documentElement.dataset.kept = "shown";
  }, { rootMargin: "300px" }).observe($("kept"));
}

// The kept-token viewer: one text as two cells keep it, side by side. Above each text a strip of the whole context and a
// map of its layers, or of the heads of the chosen one.
const picks = Object.fromEntries(["sample", "layer", "head"].map((name) => [name, $(`pick-${name}`)]));
const WINDOW = 2400; // tokens in the page at a time
const TRANSPARENT = 1.25; // so that a token that all heads kept still lets its text be read
const panes = all(".pane").map((root) => {
  const part = (name) => root.querySelector(`[data-part=${name}]`);
  const names = ["method", "budget", "fate", "score", "answer", "total", "strip", "map", "tokens"];
  return { root, shares: [], spans: [], ...Object.fromEntries(names.map((name) => [name, part(name)])) };
});
let example = null;
let first = 0; // of the window
let here = -1;

const keptOption = (view, id) =>
  [...(picks.sample?.options ?? [])].find((option) => option.dataset.model === view && option.dataset.id === id);

const openKept = async (option, wanted) => {
  if (!option) return reveal("kept");
  picks.sample.value = option.value;
  await showExample(wanted);
  reveal("kept");
  remember("kept");
};

const cellIn = (pane) =>
  example.cells.find((cell) => cell.method === pane.method.value && cell.budget === pane.budget.value);

// Layer and head are those of the pickers unless said otherwise; '' is all of them.
const sharesOf = (cell, layer = picks.layer.value, head = picks.head.value) => {
  const [text, width] = [cell.layers?.[layer], Math.ceil(example.heads / 6)]; // six heads a character, see pack.py
  const bits = (i, c) => text.charCodeAt(width * i + c) - FIRST;
  return example.tokens.map((_, i) => {
    if (layer === "") return shareOf(cell.kept, i);
    if (head !== "") return 100 * ((bits(i, Math.floor(head / 6)) >> head % 6) & 1);
    let count = 0;
    for (let c = 0; c < width; c++) for (let left = bits(i, c); left; left &= left - 1) count++;
    return (100 * count) / example.heads;
  });
};

const chooseCell = (pane, method, budget) => {
  fill(pane.method, unique(example.cells.map((cell) => cell.method)).map((name) => [name, name]), method);
  const budgets = example.cells.filter((cell) => cell.method === pane.method.value).map((cell) => cell.budget);
  fill(pane.budget, budgets.map((name) => [name, name]), budget);
};

const showExample = async ({ method, budget, against, layer = "", head = "", ...wanted } = {}) => {
  example = await unpack(picks.sample.value);
  here = -1;
  $("question").hidden = !example.question;
  $("question").lastElementChild.textContent = example.question;
  $("references").textContent = example.references || "none";
  $("full-answer").textContent = example.full ? example.full.said || "(empty)" : "not evaluated";
  const [left, right] = panes;
  chooseCell(left, method ?? left.method.value, budget ?? left.budget.value);
  const others = unique(example.cells.map((cell) => cell.method)).filter((name) => name !== left.method.value);
  const rival = against && against !== FULL ? against : right.method.value;
  chooseCell(right, rival && rival !== left.method.value ? rival : others[0], wanted["against-budget"] ?? left.budget.value);
  right.root.hidden = example.cells.length < 2;
  const layers = example.cells[0].layers ?? [];
  fill(picks.layer, [["", "all"], ...layers.map((_, i) => [String(i), String(i)])], layer);
  fill(picks.head, [["", "all"], ...[...Array(example.heads).keys()].map((i) => [String(i), String(i)])], head);
  picks.layer.parentElement.hidden = !layers.length;
  const marked = example.marked[0] ?? 0;
  first = Math.max(0, Math.min(marked - WINDOW / 2, example.tokens.length - WINDOW));
  showPanes();
  if (example.marked.length) scrollTo(marked);
};

const showPanes = () => {
  picks.head.parentElement.hidden = !example.by_head || picks.layer.value === "";
  if (picks.head.parentElement.hidden) picks.head.value = "";
  for (const pane of panes.filter((one) => !one.root.hidden)) {
    const cell = cellIn(pane);
    pane.shares = sharesOf(cell);
    pane.fate.textContent = cell.fate;
    pane.answer.textContent = cell.said || "(empty)";
    pane.score.textContent = cell.score === null ? "no score" : `${cell.score}%`;
    const kept = pane.shares.reduce((sum, share) => sum + share, 0) / pane.shares.length;
    const of = picks.layer.value && ` in layer ${picks.layer.value}${picks.head.value && `, head ${picks.head.value}`}`;
    pane.total.textContent = `${pane.shares.length.toLocaleString("en")} tokens, ${kept.toFixed(1)}% kept on average${of}`;
    drawTokens(pane);
    drawMaps(pane);
  }
};

// A span for each character or word: tokens that only continue a character have no text, and share its span.
const drawTokens = (pane) => {
  const marks = new Set(example.marked);
  const texts = example.tokens.slice(first, first + WINDOW);
  pane.spans = [];
  texts.forEach((text, offset) => {
    const at = first + offset;
    if (!text && offset) pane.spans.at(-1).shares.push(pane.shares[at]);
    else pane.spans.push({ at, shares: [pane.shares[at]], span: make("span", text, marks.has(at) ? "marked" : "") });
  });
  for (const { span, shares } of pane.spans) {
    const share = shares.reduce((sum, one) => sum + one, 0) / shares.length / 100;
    span.style.setProperty("--share", (share / TRANSPARENT).toFixed(3));
  }
  const note = (count, where) => (count > 0 ? [make("em", `… ${count.toLocaleString("en")} tokens ${where} …`)] : []);
  const left = example.tokens.length - first - WINDOW;
  pane.tokens.replaceChildren(...note(first, "before"), ...pane.spans.map(({ span }) => span), ...note(left, "after"));
};

const prepared = (canvas, height) => {
  canvas.style.height = `${height}px`;
  canvas.width = canvas.clientWidth * devicePixelRatio;
  canvas.height = height * devicePixelRatio;
  return canvas.getContext("2d");
};
const colourOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// One row of `canvas`: the mean share of the tokens under each pixel column.
const drawRow = (pen, shares, width, top, height) => {
  const keep = colourOf("--keep");
  for (let x = 0; x < width; x++) {
    const from = Math.floor((x * shares.length) / width);
    const to = Math.max(from + 1, Math.floor(((x + 1) * shares.length) / width));
    let sum = 0;
    for (let i = from; i < to; i++) sum += shares[i];
    pen.fillStyle = `rgb(${keep} / ${sum / (to - from) / 100})`;
    pen.fillRect(x, top, 1, height);
  }
};

const mapRows = (cell) => {
  if (picks.layer.value === "") return (cell.layers ?? []).map((_, layer) => sharesOf(cell, layer, ""));
  return example.by_head ? [...Array(example.heads).keys()].map((head) => sharesOf(cell, picks.layer.value, head)) : [];
};

const drawMaps = (pane) => {
  const strip = prepared(pane.strip, 30);
  drawRow(strip, pane.shares, pane.strip.width, 0, pane.strip.height);
  strip.fillStyle = colourOf("--mark");
  const each = pane.strip.width / pane.shares.length;
  for (const i of example.marked) {
    strip.fillRect(i * each, pane.strip.height * 0.8, Math.max(2 * devicePixelRatio, each), pane.strip.height);
  }
  const rows = mapRows(cellIn(pane));
  pane.map.hidden = !rows.length;
  if (!rows.length) return;
  const height = Math.max(3, Math.min(8, Math.floor(180 / rows.length)));
  const pen = prepared(pane.map, height * rows.length);
  rows.forEach((shares, row) => {
    drawRow(pen, shares, pane.map.width, row * height * devicePixelRatio, height * devicePixelRatio);
  });
};

const spanAt = (pane, index) => pane.spans.findLast(({ at }) => at <= index).span;
const scrollTo = (index) => {
  for (const pane of panes) {
    if (!pane.root.hidden) pane.tokens.scrollTop = spanAt(pane, index).offsetTop - pane.tokens.clientHeight / 2;
  }
};

const point = (index, scroll) => {
  const next = Math.min(Math.max(index, 0), example.tokens.length - 1);
  const shown = panes.filter((pane) => !pane.root.hidden);
  if (next < first || next >= first + WINDOW) {
    first = Math.max(0, Math.min(next - WINDOW / 2, example.tokens.length - WINDOW));
    shown.forEach(drawTokens);
  }
  all(".here", $("kept")).forEach((span) => span.classList.remove("here"));
  here = next;
  shown.forEach((pane) => spanAt(pane, here).classList.add("here"));
  if (scroll) scrollTo(here);
  const said = shown.map((pane) => `${Math.round(pane.shares[here])}% of heads of ${pane.method.value}`);
  $("readout").textContent = `Token ${here + 1}, ${JSON.stringify(example.tokens[here])}: kept by ${said.join(", ")}`;
};

const redraw = () => example && showPanes();
const placeOf = (event, pane) => Math.floor((event.offsetX / event.target.clientWidth) * pane.shares.length);

if (picks.sample) {
  keyed.kept = () => {
    const [left, right] = panes;
    const { model, id } = picks.sample.selectedOptions[0].dataset;
    return Object.entries({
      model: model === "0" ? "" : model, sample: id, method: left.method.value, budget: left.budget.value,
      against: right.method.value, "against-budget": right.budget.value, layer: picks.layer.value, head: picks.head.value,
    });
  };
  const changed = () => { showPanes(); remember("kept"); };
  picks.sample.addEventListener("change", async () => { await showExample(); remember("kept"); });
  for (const name of ["layer", "head"]) picks[name].addEventListener("change", changed);
  for (const pane of panes) {
    pane.method.addEventListener("change", () => { chooseCell(pane, pane.method.value, pane.budget.value); changed(); });
    pane.budget.addEventListener("change", changed);
    pane.tokens.addEventListener("mouseover", (event) => {
      const found = pane.spans.find(({ span }) => span === event.target);
      if (found) point(found.at, false);
    });
    pane.tokens.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step) { event.preventDefault(); point(here < 0 ? first : here + step, true); }
    });
    pane.tokens.addEventListener("scroll", () => { // both show the same place
      for (const other of panes) if (!other.root.hidden) other.tokens.scrollTop = pane.tokens.scrollTop;
    });
    pane.strip.addEventListener("click", (event) => point(placeOf(event, pane), true));
    pane.map.addEventListener("click", (event) => {
      const rows = mapRows(cellIn(pane)).length;
      const row = String(Math.floor((event.offsetY / event.target.clientHeight) * rows));
      picks[picks.layer.value === "" ? "layer" : "head"].value = row;
      changed();
      point(placeOf(event, pane), true);
    });
  }
  addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  new IntersectionObserver(async (entries, self) => { // the text of an example is long: not before it is seen
    if (!entries.some((entry) => entry.isIntersecting)) return;
    self.disconnect();
    if (!example) {
      const { cells } = await unpack(picks.sample.value);
      const { method } = cells[0];
      // The smallest budget shows the most.
      if (!example) await showExample({ method, budget: cells.findLast((cell) => cell.method === method).budget });
    }
    document.documentElement.dataset.kept = "shown";
  }, { rootMargin: "300px" }).observe($("kept"));
}

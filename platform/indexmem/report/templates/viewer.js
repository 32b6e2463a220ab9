// The kept-token viewer. Every string goes into the page as text, never as markup.
(() => {
  "use strict";
  const { samples } = JSON.parse(document.getElementById("viewer-data").textContent);
  if (!samples.length) return;
  const FULL = "full";
  const $ = (id) => document.getElementById(id);
  const picks = { sample: $("pick-sample"), method: $("pick-method"), budget: $("pick-budget") };
  const make = (tag, text, name) => Object.assign(document.createElement(tag), { textContent: text }, name && { className: name });
  let shares = new Uint8Array(); // percent per token of the chosen cell
  let here = -1;

  const fill = (select, values) => {
    const before = select.value;
    select.replaceChildren(...values.map((value) => new Option(value, value)));
    if (values.includes(before)) select.value = before;
  };
  const unique = (values) => [...new Set(values)];
  const sample = () => samples[picks.sample.selectedIndex];

  const showSample = () => {
    const { tokens, marked, question, references, cells } = sample();
    const marks = new Set(marked);
    $("tokens").replaceChildren(...tokens.map((text, i) => make("span", text, marks.has(i) ? "marked" : "")));
    $("question").hidden = !question;
    $("question").lastElementChild.textContent = question;
    $("references").textContent = references.join("  or  ") || "none";
    fill(picks.method, unique(cells.map((cell) => cell.method)));
    showMethod();
  };

  const showMethod = () => {
    fill(picks.budget, sample().cells.filter((cell) => cell.method === picks.method.value).map((cell) => cell.budget));
    showCell();
  };

  const showCell = () => {
    const cell = sample().cells.find((c) => c.method === picks.method.value && c.budget === picks.budget.value);
    shares = Uint8Array.from(atob(cell.kept), (byte) => byte.charCodeAt(0));
    [...$("tokens").children].forEach((span, i) => span.style.setProperty("--share", (shares[i] / 125).toFixed(3)));
    const mean = shares.reduce((sum, share) => sum + share, 0) / shares.length;
    $("kept-total").textContent = `${shares.length.toLocaleString("en")} tokens, ${mean.toFixed(1)}% kept on average`;
    drawStrip();
    showAnswers();
  };

  const drawStrip = () => {
    const strip = $("strip");
    strip.width = strip.clientWidth * devicePixelRatio;
    strip.height = strip.clientHeight * devicePixelRatio;
    const pen = strip.getContext("2d");
    const style = getComputedStyle(document.documentElement);
    const [keep, mark] = ["--keep", "--mark"].map((name) => style.getPropertyValue(name).trim());
    const count = shares.length;
    for (let x = 0; x < strip.width; x++) { // the mean of the tokens under each pixel column
      const from = Math.floor((x * count) / strip.width);
      const part = shares.subarray(from, Math.max(from + 1, Math.floor(((x + 1) * count) / strip.width)));
      pen.fillStyle = `rgb(${keep} / ${part.reduce((sum, share) => sum + share, 0) / part.length / 100})`;
      pen.fillRect(x, 0, 1, strip.height);
    }
    pen.fillStyle = mark;
    const least = 2 * devicePixelRatio;
    for (const i of sample().marked) pen.fillRect((i * strip.width) / count, strip.height * 0.8, Math.max(least, strip.width / count), strip.height);
  };

  const showAnswers = () => {
    const rows = sample().answers.filter((answer) => answer.method === FULL || answer.budget === picks.budget.value);
    $("answers").replaceChildren(...rows.map((answer) => {
      const row = make("tr", "", answer.method === picks.method.value ? "chosen" : "");
      const name = make("th", answer.method === FULL ? "full cache" : answer.method);
      name.scope = "row";
      const text = make("td", "");
      text.append(make("span", answer.error || answer.text || "(empty)", "verbatim"));
      row.append(name, make("td", answer.score === null ? "–" : `${(100 * answer.score).toFixed(0)}%`), text);
      return row;
    }));
  };

  const point = (index, scroll) => {
    const spans = $("tokens").children;
    spans[here]?.classList.remove("here");
    here = Math.min(Math.max(index, 0), spans.length - 1);
    spans[here].classList.add("here");
    if (scroll) $("tokens").scrollTop = spans[here].offsetTop - $("tokens").clientHeight / 2;
    $("readout").textContent = `Token ${here + 1}, ${JSON.stringify(spans[here].textContent)}: kept by ${shares[here]}% of heads`;
  };

  fill(picks.sample, samples.map((s) => s.id));
  picks.sample.addEventListener("change", () => { here = -1; showSample(); });
  picks.method.addEventListener("change", showMethod);
  picks.budget.addEventListener("change", showCell);
  $("tokens").addEventListener("mouseover", (event) => {
    if (event.target.parentElement === $("tokens")) point([...$("tokens").children].indexOf(event.target), false);
  });
  $("tokens").addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) { event.preventDefault(); point(here + step, true); }
  });
  $("strip").addEventListener("click", (event) => point(Math.floor((event.offsetX / $("strip").clientWidth) * shares.length), true));
  addEventListener("resize", drawStrip);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawStrip);
  showSample();
  picks.budget.selectedIndex = picks.budget.length - 1; // the smallest budget shows the most
  showCell();
})();

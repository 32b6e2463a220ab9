// Draws charts when they are about to be seen, in the page's colours and without the methods that are filtered away.
const charts = all("[data-figure]");
const NARROW = 560; // pixels; below it the labels beside the lines give way to the list of methods
const EAGER = 20; // charts that are drawn without being seen, so that a short report prints whole
const PRINT_WIDTH = 660;
const config = {
  responsive: true,
  displaylogo: false,
  displayModeBar: matchMedia("(hover: hover)").matches ? "hover" : false, // elsewhere it would cover the lines for good
  modeBarButtons: [["toImage"]],
};
const hiddenMethods = new Set();

// What of a chart has the page's colours, as Plotly's relayout wants it.
const colours = (chart) => {
  const style = getComputedStyle(document.documentElement);
  const [text, card, line] = ["--muted", "--card", "--line"].map((name) => style.getPropertyValue(name).trim());
  return {
    "font.color": text, "hoverlabel.bgcolor": card, "hoverlabel.bordercolor": line, "hoverlabel.font.color": text,
    "modebar.bgcolor": "rgba(0,0,0,0)", "modebar.color": text,
  };
};

// Plotly becomes a script of the page, whose policy knows it by its hash.
let plotly = null;
const loadPlotly = () => (plotly ??= inflate("plotly").text().then((text) => { document.head.append(make("script", text)); }));

const started = new Map();
const draw = (chart) => {
  if (!started.has(chart)) started.set(chart, drawNow(chart));
  return started.get(chart);
};

const drawNow = async (chart) => {
  const [{ data, layout }] = await Promise.all([unpack(chart.dataset.figure), loadPlotly()]);
  let traces = data;
  if (chart.clientWidth < NARROW) {
    traces = data.filter((trace) => trace.mode !== "text");
    layout.margin = { ...layout.margin, l: 46, r: layout.yaxis2?.side ? 72 : 10 };
  }
  for (const trace of traces) if (hiddenMethods.has(trace.legendgroup)) trace.visible = false;
  await Plotly.newPlot(chart, traces, layout, config);
  await Plotly.relayout(chart, colours(chart));
};

const seen = (chart) => chart.offsetParent !== null;
const drawn = () => charts.filter((chart) => chart.data);

const watcher = new IntersectionObserver(
  (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => {
    watcher.unobserve(entry.target);
    draw(entry.target);
  }),
  { rootMargin: "400px" },
);
charts.forEach((chart) => watcher.observe(chart));

const breathe = () => new Promise((done) => setTimeout(done)); // lets the page answer between two charts
const drawEagerly = async () => {
  for (const chart of charts.filter(seen).slice(0, EAGER)) {
    await breathe();
    await draw(chart);
  }
  document.documentElement.dataset.charts = "drawn";
};

const showMethods = () => {
  for (const chart of drawn()) {
    const places = [...chart.data.keys()].filter((i) => chart.data[i].legendgroup);
    if (!places.length) continue;
    Plotly.restyle(chart, { visible: places.map((i) => !hiddenMethods.has(chart.data[i].legendgroup)) }, places);
  }
};
listen("methods", showMethods);

for (const choice of all(".choice")) {
  const select = choice.querySelector("select");
  select.addEventListener("change", () => {
    [...choice.querySelectorAll(":scope > div")].forEach((panel, i) => { panel.hidden = i !== select.selectedIndex; });
  });
}

const recolour = () => drawn().forEach((chart) => Plotly.relayout(chart, colours(chart)));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
addEventListener("beforeprint", () => {
  for (const chart of drawn()) {
    const width = Math.min(PRINT_WIDTH, chart.clientWidth);
    Plotly.relayout(chart, { ...colours(chart), width, "font.color": "#333" });
  }
});
addEventListener("afterprint", () => drawn().forEach((chart) => Plotly.relayout(chart, { ...colours(chart), width: null })));
drawEagerly();

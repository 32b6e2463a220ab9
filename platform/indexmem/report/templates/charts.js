// Draws every chart of the page, keeps them in the page's colours, and lets the legend's buttons hide methods.
(() => {
  "use strict";
  const figures = JSON.parse(document.getElementById("figures-data").textContent);
  const charts = [...document.querySelectorAll("[data-figure]")];
  const config = {
    responsive: true,
    displaylogo: false,
    displayModeBar: matchMedia("(hover: hover)").matches ? "hover" : false, // elsewhere it would cover the lines for good
    modeBarButtons: [["toImage"]],
  };
  const NARROW = 560; // pixels; below it the labels beside the lines give way to the legend

  const colours = () => {
    const style = getComputedStyle(document.documentElement);
    const [text, card, line] = ["--muted", "--card", "--line"].map((name) => style.getPropertyValue(name).trim());
    return { "font.color": text, "hoverlabel.bgcolor": card, "hoverlabel.bordercolor": line, "hoverlabel.font.color": text, "modebar.bgcolor": "rgba(0,0,0,0)", "modebar.color": text };
  };

  const draw = async (chart) => {
    const { data, layout } = figures[chart.dataset.figure];
    let traces = data;
    if (chart.clientWidth < NARROW) {
      traces = data.filter((trace) => trace.mode !== "text");
      layout.margin = { ...layout.margin, l: 44, r: layout.yaxis2 ? 72 : 10 };
    }
    await Plotly.newPlot(chart, traces, layout, config);
    await Plotly.relayout(chart, colours());
  };

  const recolour = () => charts.filter((chart) => chart.data).forEach((chart) => Plotly.relayout(chart, colours()));

  const toggle = (button) => {
    const shown = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(shown));
    for (const chart of charts.filter((chart) => chart.data)) {
      const traces = [...chart.data.keys()].filter((i) => chart.data[i].legendgroup === button.dataset.method);
      if (traces.length) Plotly.restyle(chart, { visible: shown }, traces);
    }
  };

  document.querySelectorAll(".legend button").forEach((b) => b.addEventListener("click", () => toggle(b)));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
  matchMedia("print").addEventListener("change", recolour);
  (async () => {
    for (const chart of charts) await draw(chart);
    document.documentElement.dataset.charts = "drawn";
  })();
})();

"""The report in a real browser: charts drawn, three clicks to a sample's kept tokens, hostile text inert, no error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from chrome import BINARY, Chrome, Page
from report_rows import ATTACK, METHODS, MIXED, make_history, make_retention, make_row, make_rows
from report_zoo import MODELS, zoo_rows

from indexmem.config.budget import Budget
from indexmem.config.schema import Experiment
from indexmem.report.html import write_report
from indexmem.results.schema import RETENTION_SCHEMA, ROW_SCHEMA
from indexmem.results.summary import summarise

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(BINARY is None, reason="no Chromium on this machine: apt-get install chromium"),
]
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
SETTLED = "document.documentElement.dataset.charts && document.documentElement.dataset.samples"
PWNED = "document.documentElement.dataset.pwned !== undefined"
BLANK = """[...document.querySelectorAll('[data-figure]')]
  .filter((chart) => !chart.querySelector('.scatterlayer .trace path, .heatmaplayer image, .barlayer path'))
  .map((chart) => chart.dataset.figure)"""
DRAW_ALL = "Promise.all(charts.map(draw))"  # names of the page's own scripts


@pytest.fixture(scope="module")
def full_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = zoo_rows(samples=4)
    out = tmp_path_factory.mktemp("browser") / "full.html"
    return write_report(Experiment(), rows, RETENTION_SCHEMA.empty_table(), out, make_history())


@pytest.fixture
def page(chrome: Chrome, report: Path) -> Iterator[Page]:
    yield from chrome.viewing(report, SETTLED)


def test_every_chart_of_every_section_is_drawn(chrome: Chrome, full_report: Path) -> None:
    for page in chrome.viewing(full_report, SETTLED):
        page.choose("#filter-model", "")
        page.evaluate("document.querySelectorAll('.choice > div').forEach((panel) => { panel.hidden = false; })")
        page.evaluate(DRAW_ALL)
        assert page.evaluate(BLANK) == []
        assert page.evaluate("document.querySelectorAll('[data-figure]').length") > 40


def test_charts_wait_until_they_may_be_seen(chrome: Chrome, full_report: Path) -> None:
    for page in chrome.viewing(full_report, SETTLED):
        hidden = page.evaluate("charts.filter((chart) => !seen(chart)).length")
        assert hidden > 0
        assert page.evaluate("charts.filter((chart) => !seen(chart) && chart.data).length") == 0
        page.evaluate("document.querySelector('#needles').scrollIntoView()")
        page.choose("#needles .choice select", "90% evicted")
        page.until("document.querySelectorAll('#needles .choice > div')[3].querySelector('.heatmaplayer image')")


def test_three_clicks_from_the_verdict_to_the_tokens_that_were_kept(page: Page) -> None:
    page.click("#verdict .findings li:last-child .open")
    page.until("document.querySelector('#see-said').textContent.startsWith('indexmem at 90%')")
    said = page.text("#see-said")
    assert "95% interval" in said
    assert re.search(r"\+\d+\.\d points against indexer \(.* adjusted p = 0\.\d+\)", said)
    assert page.evaluate("document.activeElement.id") == "samples-title"
    page.click("#see-kept")
    page.until("document.querySelectorAll('.pane:first-child .tokens span').length === 1200")
    chosen = "panes.map((pane) => [pane.method.value, pane.budget.value])"
    assert page.evaluate(chosen) == [["indexmem", "90%"], ["indexer", "90%"]], "beside its closest rival"
    assert "1,200 tokens" in page.text(".pane output")
    assert page.text("#references") == "7000000"
    assert "7000000" in page.text("#full-answer")
    assert re.fullmatch(r"\d+%", page.text(".pane [data-part=score]"))
    assert "nswered" in page.text(".pane .fate")


def test_a_cell_of_the_table_leads_to_its_samples_with_losses_first(page: Page) -> None:
    page.choose(".by-task select", "90%")
    page.click(".by-task [data-method='knorm'][data-benchmark='niah_single_1']")
    page.until("document.querySelector('#see-said').textContent.startsWith('knorm at 90% on niah_single_1')")
    chips = page.evaluate("all('#see-list .chip').map((chip) => chip.textContent)")
    assert chips[0] == "\N{MINUS SIGN}100.0 points"
    assert page.evaluate("all('#see-list h3').every((name) => name.textContent.startsWith('niah_single_1/'))")
    tally = page.evaluate("document.querySelector('#see-tally').getAttribute('aria-label')")
    assert sum(map(int, re.findall(r"\d+", tally))) == 20
    page.click("#see-more")
    page.until("document.querySelectorAll('#see-list li').length === 16")


def test_methods_and_benchmarks_are_filtered_everywhere(page: Page) -> None:
    page.click("#curves [data-toggle='snapkv']")
    shown = "charts.filter((c) => c.data).flatMap((c) => c.data).filter((t) => t.legendgroup === 'snapkv')"
    assert set(page.evaluate(f"{shown}.map((trace) => trace.visible)")) == {False}
    assert page.evaluate("all('tr[data-method=snapkv]').every((row) => row.hidden)")
    assert page.text("#filter-methods output") == "6 of 7"
    page.click("[data-methods='all']")
    assert set(page.evaluate(f"{shown}.map((trace) => trace.visible)")) == {True}
    page.choose("#filter-benchmark", "niah_single_2")
    assert page.evaluate("all('#curves .panel').filter((panel) => !panel.hidden).length") == 2
    page.until("document.querySelectorAll('.by-task thead th').length === 2")
    page.until("document.querySelector('#see-benchmark').value === 'niah_single_2'")


def test_a_benchmark_filters_the_verdict_and_the_means_too(page: Page) -> None:
    headline, cell = "#verdict .overall .headline", "[data-kind=overview] tr[data-method=snapkv] td:last-child b"
    overall, mean, caption = page.text(headline), page.text(cell), page.text("[data-kind=overview] caption b")
    assert caption == "Mean over 3 benchmarks"
    page.choose("#filter-benchmark", "niah_single_1")
    page.until("!document.querySelector('#verdict .by-benchmark').hidden")
    assert page.evaluate("document.querySelector('#verdict .overall').hidden")
    assert page.text("#verdict .by-benchmark .headline").startswith("On niah_single_1: ")
    assert page.evaluate("document.querySelectorAll('#verdict .by-benchmark .findings li').length") == 4
    page.until("document.querySelector('[data-kind=overview] caption b').textContent === 'niah_single_1'")
    alone = summarise(make_rows()).cells["snapkv", Budget.of_ratio(0.9), "niah_single_1"]
    assert page.text(cell) == f"{100 * alone.mean:.1f}" != mean
    page.click("#verdict .by-benchmark .open")
    page.until("document.querySelector('#see-benchmark').value === 'niah_single_1'")
    page.choose("#filter-benchmark", "")
    page.until("!document.querySelector('#verdict .overall').hidden")
    page.until(f"document.querySelector('[data-kind=overview] caption b').textContent === '{caption}'")
    assert (page.text(headline), page.text(cell)) == (overall, mean)


def test_what_hides_methods_stands_where_it_acts(page: Page) -> None:
    """Below the verdict, which it does not change."""
    assert page.evaluate("document.querySelector('#scores #filter-methods') !== null")
    assert "verdict stay those of all methods" in page.text("#filter-methods")
    assert page.evaluate("document.querySelectorAll('.bar select').length") == 1


def test_one_model_is_shown_or_all(chrome: Chrome, full_report: Path) -> None:
    shown = "all('#verdict .model').filter((name) => name.offsetParent).map((name) => name.textContent)"
    for page in chrome.viewing(full_report, SETTLED):
        assert page.evaluate(shown) == [MODELS[0]]
        page.choose("#filter-model", "1")
        assert page.evaluate(shown) == [MODELS[1]]
        page.choose("#filter-model", "")
        assert page.evaluate(shown) == list(MODELS)


def test_tokens_are_read_by_keyboard_and_layers_chosen(chrome: Chrome, tmp_path: Path) -> None:
    rows = make_rows(samples=1, failures=0)
    retention = make_retention(rows, tokens=3000).to_pylist()
    layers = [bytes([7] * 3000), bytes([0, 5] * 1500)]  # a bit a head
    retention = [row | {"kept_heads": layers, "kv_heads": 3} for row in retention]
    kept = RETENTION_SCHEMA.empty_table().from_pylist(retention, schema=RETENTION_SCHEMA)
    for page in chrome.viewing(write_report(Experiment(), rows, kept, tmp_path / "r.html"), SETTLED):
        page.evaluate("document.querySelector('#kept').scrollIntoView()")
        page.until("document.documentElement.dataset.kept")
        assert page.evaluate("panes.map((pane) => pane.spans.length)") == [2400, 2400]  # not all 3,000 at once
        page.choose("#pick-layer", "1")
        assert "33.3% kept on average in layer 1" in page.text(".pane output")
        page.evaluate("point(0, true)")
        page.evaluate("panes[0].tokens.dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight' }))")
        assert page.text("#readout").startswith('Token 2, " grass": kept by 67% of heads of indexmem, 67% of heads of')
        assert page.evaluate("all('.here').length") == 2, "in both texts"
        page.choose("#pick-head", "1")
        assert "0.0% kept on average in layer 1, head 1" in page.text(".pane output")
        page.choose("#pick-head", "2")
        page.evaluate("point(2999, true)")
        assert "kept by 100%" in page.text("#readout")
        page.choose("#right-method", "knorm")
        page.choose("#right-budget", "25%")
        assert page.evaluate("[panes[1].method.value, panes[1].budget.value]") == ["knorm", "25%"]


def test_bytes_of_one_character_are_one_span(chrome: Chrome, tmp_path: Path) -> None:
    rows = make_rows(samples=1, failures=0)
    dash = ["a", " \N{EM DASH}", "", "", "b"]
    retention = [r | {"tokens": dash, "retention": [0, 1, 1, 0.4, 0]} for r in make_retention(rows, 60).to_pylist()]
    kept = RETENTION_SCHEMA.empty_table().from_pylist(retention, schema=RETENTION_SCHEMA)
    for page in chrome.viewing(write_report(Experiment(), rows, kept, tmp_path / "r.html"), SETTLED):
        page.evaluate("document.querySelector('#kept').scrollIntoView()")
        page.until("document.documentElement.dataset.kept")
        texts = page.evaluate("all('.tokens span').slice(0, 3).map((span) => span.textContent)")
        assert texts == ["a", " \N{EM DASH}", "b"]
        shade = page.evaluate("all('.tokens span')[1].style.getPropertyValue('--share')")
        assert float(shade) * 1.25 == pytest.approx(0.8, abs=0.01), "the mean of its tokens"


def test_budgets_of_several_kinds_have_charts(chrome: Chrome, tmp_path: Path) -> None:
    rows = make_rows(budgets=MIXED, samples=4)
    for page in chrome.viewing(write_report(Experiment(), rows, make_retention(rows), tmp_path / "r.html"), SETTLED):
        page.evaluate(DRAW_ALL)
        assert page.evaluate(BLANK) == []
        assert page.evaluate("[...see.budget.options].map((option) => option.value)") == list(map(str, MIXED))


HOSTILE = {
    "script": f"</script><script>{ATTACK}</script>",
    "image": f'<img src=x onerror="{ATTACK}">',
    "template": "${alert(1)} {{ 7 * 7 }} {% raw %}",
    "comment": "<!-- --!> ]]> <![CDATA[",
    "override": "a\u202egnp.exe\u2066\u2069",
    "null": "before\x00after\x1b[31m",
    "lines": "x" * 200_000,
    "newlines": "\n" * 5_000 + "end",
}


def test_hostile_answers_are_shown_and_never_run(chrome: Chrome, tmp_path: Path) -> None:
    rows = [
        make_row(method, 0.5, "b", i, float(method == "good"), prediction=text, references=[text[:100]])
        for method in ("good", f"bad(x={HOSTILE['image']})")
        for i, text in enumerate(HOSTILE.values())
    ]
    table = ROW_SCHEMA.empty_table().from_pylist(rows, schema=ROW_SCHEMA)
    for page in chrome.viewing(
        write_report(Experiment(), table, make_retention(table, 90), tmp_path / "r.html"), SETTLED, 390
    ):
        page.evaluate(DRAW_ALL)
        page.evaluate("document.querySelector('#kept').scrollIntoView()")
        page.until("document.documentElement.dataset.kept")
        assert not page.evaluate(PWNED)
        answers = page.evaluate("all('#see-list .answer .verbatim').map((answer) => answer.textContent)")
        assert HOSTILE["script"] in answers
        assert HOSTILE["image"] in answers
        assert HOSTILE["template"] in answers
        assert "a[U+202E]gnp.exe[U+2066][U+2069]" in answers
        assert "before␀after␛[31m" in answers
        assert max(map(len, answers)) <= 1001
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert page.evaluate("document.querySelectorAll('#see-list img, #see-list script, table img').length") == 0


def test_the_pages_policy_stops_a_script_that_got_in(chrome: Chrome, report: Path, tmp_path: Path) -> None:
    injection = f'<script>{ATTACK}</script><img src="x" onerror="{ATTACK}"><img src="https://example.org/x.png"></body>'
    source = report.read_text(encoding="utf-8").replace("</body>", injection)
    (tmp_path / "with.html").write_text(source, encoding="utf-8")
    (tmp_path / "without.html").write_text(POLICY.sub("", source), encoding="utf-8")
    stopped = chrome.open(tmp_path / "with.html")
    stopped.until(SETTLED)
    assert not stopped.evaluate(PWNED)
    assert sum("Content Security Policy" in line for line in stopped.complaints) >= 2
    assert chrome.open(tmp_path / "without.html").evaluate(PWNED)


CONTRAST = """(() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const colour = rgb(getComputedStyle(e).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const speaks = (e) => [...e.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  const shown = (e) => e.offsetParent && !e.closest("svg, .tokens");
  const texts = all("header *, .bar *, main *").filter((e) => shown(e) && speaks(e));
  return texts.map((e) => {
    const [a, b] = [light(rgb(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
    return [(a + 0.05) / (b + 0.05), `${e.tagName}.${e.className} ${e.textContent.slice(0, 20)}`];
  }).filter(([ratio]) => ratio < 4.5);
})()"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_contrasts_with_what_is_behind_it(chrome: Chrome, report: Path, dark: bool) -> None:
    """WCAG AA: at least 4.5:1."""
    for page in chrome.viewing(report, SETTLED, dark=dark):
        assert page.evaluate(CONTRAST) == []
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(16, 19, 24)") == dark


def test_a_phone_scrolls_down_only_and_controls_have_names(chrome: Chrome, full_report: Path) -> None:
    unnamed = """all('button, select, input, [role=img], [role=region], summary').filter((e) =>
      !(e.textContent.trim() || e.getAttribute('aria-label') || e.closest('label'))).map((e) => e.outerHTML)"""
    for page in chrome.viewing(full_report, SETTLED, 390):
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert page.evaluate(unnamed) == []
        assert page.evaluate("all('table').every((table) => table.caption)")


def test_charts_fit_on_paper(chrome: Chrome, report: Path, tmp_path: Path) -> None:
    for page in chrome.viewing(report, SETTLED):
        page.evaluate("""addEventListener('beforeprint', () => {
          window.widest = Math.max(...all('.main-svg').map((svg) => svg.width.baseVal.value)); })""")
        assert page.pdf(tmp_path / "report.pdf").stat().st_size > 50_000
        assert 300 < page.evaluate("window.widest") <= 660
        assert page.evaluate("Math.max(...all('.main-svg').map((svg) => svg.width.baseVal.value))") > 660


def test_many_cells_make_few_nodes(chrome: Chrome, full_report: Path) -> None:
    for page in chrome.viewing(full_report, SETTLED):
        assert page.evaluate("document.querySelectorAll('*').length") < 25_000
        assert page.evaluate("charts.filter((chart) => chart.data).length") <= page.evaluate("EAGER")


def test_every_method_has_its_samples(page: Page) -> None:
    assert set(page.evaluate("[...see.method.options].map((option) => option.value)")) == {"full", *METHODS}

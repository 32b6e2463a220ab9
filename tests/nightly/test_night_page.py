"""A night's page in a real browser: lines over nights, links, hostile text inert, nothing requested."""

from collections.abc import Iterator

import pytest
from chrome import BINARY, Chrome, Page
from night_rows import METHODS, date, fill, judged, nightly_spec, right
from report_rows import HOSTILE

from indexmem.nightly.night import Nights
from indexmem.nightly.pages import write_pages

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(BINARY is None, reason="no Chromium on this machine: apt-get install chromium"),
]
LINKS = "[...document.querySelectorAll('a')].map((link) => link.href)"
LINES = """
[...document.querySelectorAll('svg.trend')].map((line) => [line.getAttribute('aria-label'), line.getBBox().height])
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The second night, on which one method falls."""
    spec = nightly_spec(tmp_path_factory.mktemp("nights"))
    nights = Nights.of(spec)
    for number, lost in enumerate((1.0, 0.0)):
        night = nights.night(date(number))
        fill(night, lambda method, sample: right(method, sample) * (method != "knorm" or lost), git_commit=HOSTILE)  # noqa: B023
        write_pages(night, judged(spec, night), nights.verdicts(night.date, 30))
    with Chrome() as chrome:
        yield chrome.open(night.page, 390)


def test_scores_of_each_method_are_a_line_over_nights(page: Page) -> None:
    lines = page.evaluate(LINES)
    assert [label for label, _ in lines] == ["73.3%, 0.0%", "73.3%, 73.3%"]
    assert len(lines) == len(METHODS)
    assert lines[0][1] > 20 > lines[1][1], "a fall is seen, and a steady method is a flat line"


def test_a_narrow_screen_hostile_text_and_no_request(page: Page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("document.documentElement.dataset.pwned === undefined")
    assert page.complaints == []


def test_links_lead_to_pages_that_are_there(page: Page) -> None:
    (link,) = page.evaluate(LINKS)
    assert link.endswith("/2026-11-01/report.html")
    page.evaluate(f"location.href = '{link}'")
    page.until("document.title.startsWith('nightly 2026-11-01')")

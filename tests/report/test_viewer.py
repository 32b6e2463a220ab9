"""Data of the kept-token viewer."""

from __future__ import annotations

import base64

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_rows import METHODS, MIXED, make_retention, make_rows

from indexmem.report import viewer
from indexmem.report.viewer import find_tokens, viewer_data
from indexmem.results.schema import RETENTION_SCHEMA


def test_shares_survive_packing_to_a_percent() -> None:
    rows = make_rows(samples=2, failures=0)
    retention = make_retention(rows, tokens=300)
    sample = viewer_data(rows, retention, METHODS)["samples"][0]
    cell = next(c for c in sample["cells"] if (c["method"], c["budget"]) == ("indexer", "50%"))
    place = retention["cell_id"].to_pylist().index(f"indexer-50%-{sample['id'].split('/')[0]}")
    shares = retention["retention"][place].as_py()
    assert [byte / 100 for byte in base64.b64decode(cell["kept"])] == pytest.approx(shares, abs=0.0051)


def test_every_sample_has_its_answers_full_cache_first() -> None:
    rows = make_rows(samples=2)
    data = viewer_data(rows, make_retention(rows, tokens=100), METHODS)
    assert [s["id"] for s in data["samples"]] == ["niah_multikey_1/0", "niah_single_1/0", "niah_single_2/0"]
    answers = data["samples"][0]["answers"]
    assert len(answers) == 7 * 4 + 1
    assert answers[0]["method"] == "full"
    assert data["samples"][0]["references"] == ["7000000"]


def test_budgets_of_a_method_come_in_display_order() -> None:
    rows = make_rows(budgets=MIXED[::-1], samples=1, failures=0)
    cells = viewer_data(rows, make_retention(rows, tokens=100), METHODS)["samples"][0]["cells"]
    assert [cell["budget"] for cell in cells if cell["method"] == "knorm"] == list(map(str, MIXED))


def test_a_failed_answer_says_so() -> None:
    rows = make_rows(samples=1, failures=1)
    answers = viewer_data(rows, make_retention(rows, tokens=100), METHODS)["samples"][-1]["answers"]
    assert answers[-1] == {
        "method": "random",
        "budget": "90%",
        "text": "",
        "score": None,
        "error": "failed: OutOfMemoryError",
    }


def test_the_reference_is_marked_across_token_borders() -> None:
    tokens = ["The", " key", " is", " 70", "00", "1", "3.", " Yes"]
    assert find_tokens(tokens, ["700013"]) == [3, 4, 5, 6]
    assert find_tokens(tokens, ["is"]) == []  # too short to mean anything


@given(st.lists(st.text("ab", max_size=3), max_size=12), st.text("ab", min_size=4, max_size=5))
def test_marked_tokens_cover_exactly_the_occurrences(tokens: list[str], text: str) -> None:
    marked = find_tokens(tokens, [text])
    assert bool(marked) == (text in "".join(tokens))
    joined = "".join(tokens[marked[0] : marked[-1] + 1]) if marked else text
    assert text in joined


def test_examples_beyond_the_size_limit_are_counted_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make_rows(samples=1, failures=0)
    monkeypatch.setattr(viewer, "MAX_VALUES", 100)
    data = viewer_data(rows, make_retention(rows, tokens=100), METHODS)
    assert (len(data["samples"]), data["omitted"]) == (1, 2)


def test_a_question_is_shown_where_one_was_recorded() -> None:
    rows = make_rows(samples=1)
    retention = make_retention(rows, tokens=50)
    assert viewer_data(rows, retention, METHODS)["samples"][0]["question"].startswith("Which number?")
    unknown = retention.set_column(
        retention.schema.get_field_index("question"), "question", pa.nulls(retention.num_rows, pa.string())
    )
    assert viewer_data(rows, unknown, METHODS)["samples"][0]["question"] == ""


def test_no_retention_no_examples() -> None:
    assert viewer_data(make_rows(samples=1), RETENTION_SCHEMA.empty_table(), METHODS) == {"samples": [], "omitted": 0}

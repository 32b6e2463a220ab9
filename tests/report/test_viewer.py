"""Data of the kept-token viewer."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_rows import METHODS, MIXED, make_retention, make_rows

from indexmem.report import viewer
from indexmem.report.pack import FIRST
from indexmem.report.viewer import find_tokens, viewer_data
from indexmem.results.schema import RETENTION_SCHEMA


def test_shares_survive_packing_to_a_percent() -> None:
    rows = make_rows(samples=2, failures=0)
    retention = make_retention(rows, tokens=300)
    sample = viewer_data(rows, retention, METHODS)["samples"][0]
    cell = next(c for c in sample["cells"] if (c["method"], c["budget"]) == ("indexer", "50%"))
    place = retention["cell_id"].to_pylist().index(f"indexer-50%-{sample['id'].split('/')[0]}")
    shares = retention["retention"][place].as_py()
    assert [(ord(letter) - FIRST) / 100 for letter in cell["kept"]] == pytest.approx(shares, abs=0.0051)


def test_every_sample_has_every_cell_but_the_full_caches() -> None:
    rows = make_rows(samples=2)
    data = viewer_data(rows, make_retention(rows, tokens=100), METHODS)
    assert [s["id"] for s in data["samples"]] == ["niah_multikey_1/0", "niah_single_1/0", "niah_single_2/0"]
    cells = data["samples"][0]["cells"]
    assert len(cells) == 7 * 4
    assert list(dict.fromkeys(cell["method"] for cell in cells)) == list(METHODS)
    assert data["samples"][0]["references"] == "7000000"


def with_layers(retention: pa.Table, heads: int = 4) -> pa.Table:
    """Two layers: in the first, every head keeps even tokens; in the second one head keeps all."""
    changed = [
        row | {"kept_heads": [bytes(heads * (i % 2 == 0) for i in range(n)), bytes([1] * n)], "kv_heads": heads}
        for row in retention.to_pylist()
        if (n := len(row["tokens"]))
    ]
    return pa.Table.from_pylist(changed, schema=RETENTION_SCHEMA)


def test_layers_tell_the_share_of_their_own_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make_rows(samples=1, failures=0)
    retention = with_layers(make_retention(rows, tokens=60))
    cell = viewer_data(rows, retention, METHODS)["samples"][0]["cells"][0]
    assert [[ord(letter) - FIRST for letter in layer[:4]] for layer in cell["layers"]] == [[100, 0, 100, 0], [25] * 4]
    monkeypatch.setattr(viewer, "MAX_LAYER_VALUES", 1)
    assert "layers" not in viewer_data(rows, retention, METHODS)["samples"][0]["cells"][0]


def test_rows_without_layers_have_none() -> None:
    rows = make_rows(samples=1, failures=0)
    assert viewer_data(rows, make_retention(rows, tokens=60), METHODS)["samples"][0]["cells"][0]["layers"] == []


def test_budgets_of_a_method_come_in_display_order() -> None:
    rows = make_rows(budgets=MIXED[::-1], samples=1, failures=0)
    cells = viewer_data(rows, make_retention(rows, tokens=100), METHODS)["samples"][0]["cells"]
    assert [cell["budget"] for cell in cells if cell["method"] == "knorm"] == list(map(str, MIXED))


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

"""Data of the kept-token viewer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from report_rows import METHODS, MIXED, make_retention, make_rows

from indexmem.report import viewer
from indexmem.report.fate import fate
from indexmem.report.pack import FIRST
from indexmem.report.viewer import find_tokens, viewer_data
from indexmem.results.head_bits import BITS_SINCE, head_bits, kept_by_head
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


def with_layers(retention: pa.Table, heads: int = 4, **changes: Any) -> pa.Table:
    """Two layers: in the first, every head keeps even tokens; in the second the third head keeps all."""
    changed = []
    for row in retention.to_pylist():
        kept_LHT = np.zeros((2, heads, len(row["tokens"])), bool)
        kept_LHT[0, :, ::2] = kept_LHT[1, 2] = True
        changed.append(row | {"kept_heads": list(map(head_bits, kept_LHT)), "kv_heads": heads} | changes)
    return pa.Table.from_pylist(changed, schema=RETENTION_SCHEMA)


@pytest.mark.parametrize(("heads", "first", "second"), [(4, [15, 0, 15, 0], [4] * 4), (8, [63, 3, 0, 0], [4, 0] * 2)])
def test_layers_tell_which_heads_kept_a_token(heads: int, first: list[int], second: list[int]) -> None:
    """Six heads a character."""
    rows = make_rows(samples=1, failures=0)
    sample = viewer_data(rows, with_layers(make_retention(rows, tokens=60), heads), METHODS)["samples"][0]
    found = [[ord(letter) - FIRST for letter in layer[:4]] for layer in sample["cells"][0]["layers"]]
    assert found == [first, second]
    assert (sample["heads"], sample["by_head"]) == (heads, True)


def test_rows_of_earlier_versions_have_numbers_of_heads_and_not_which() -> None:
    rows = make_rows(samples=1, failures=0)
    retention = with_layers(make_retention(rows, tokens=60), schema_version=6, kept_heads=[bytes([3, 0] * 30)])
    sample = viewer_data(rows, retention, METHODS)["samples"][0]
    assert [ord(letter) - FIRST for letter in sample["cells"][0]["layers"][0][:3]] == [7, 0, 7]
    assert sample["by_head"] is False


@given(arrays(bool, st.tuples(st.integers(1, 3), st.integers(1, 20), st.integers(1, 9))))
def test_kept_heads_survive_storing(kept_LHT: np.ndarray) -> None:
    layers = list(map(head_bits, kept_LHT))
    assert np.array_equal(kept_by_head(layers, kept_LHT.shape[1], BITS_SINCE), kept_LHT)


def test_examples_of_all_benchmarks_come_before_further_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make_rows(samples=3, failures=0)
    retention = pa.concat_tables([make_retention(rows, 50, index=index) for index in range(3)])
    monkeypatch.setattr(viewer, "MAX_VALUES", 4 * 28 * 50)
    data = viewer_data(rows, retention, METHODS)
    assert [s["id"] for s in data["samples"]] == [
        *("niah_multikey_1/0", "niah_multikey_1/1", "niah_single_1/0", "niah_single_2/0")
    ]
    assert data["omitted"] == 5


def test_an_example_has_answers_scores_and_what_became_of_the_reference() -> None:
    rows = make_rows(samples=1, failures=0)
    data = viewer_data(rows, with_layers(make_retention(rows, tokens=60)), METHODS)["samples"][0]
    scores = {
        (row["method"], row["budget"]): row["score"] for row in rows.to_pylist() if row["sample_id"] == data["id"]
    }
    for cell in data["cells"]:
        assert cell["score"] == round(100 * scores[cell["method"], cell["budget"]])
        assert cell["said"].strip()
        assert cell["fate"].startswith("Reference evicted in 3 of 8 heads, whole in 1, in part in 4; answered")
    assert data["full"]["score"] == round(100 * scores["full", "0%"])
    assert data["lost"] == sum(cell["score"] < data["full"]["score"] for cell in data["cells"])


MEMORY = "with a memory of what was evicted"


@pytest.mark.parametrize(
    ("kept", "score", "memory", "said"),
    [
        ([0b00, 0b00, 0b00], 1.0, True, f"Reference evicted in all 3 heads; answered, {MEMORY}."),
        ([0b11, 0b00, 0b00], 0.0, False, "Reference evicted in 2 of 3 heads, whole in 1; answered wrong."),
        ([0b11, 0b01, 0b10], 0.5, False, "Reference kept whole in 1 of 3 heads, in part in 2; answered in part (50%)."),
        ([0b11, 0b11, 0b11], None, True, "Reference kept whole in all 3 heads; no answer."),
    ],
)  # fmt: skip
def test_the_fate_of_the_reference_in_words(kept: list[int], score: float | None, memory: bool, said: str) -> None:
    kept_LHT = np.array([[[False, bool(head & 1), bool(head & 2)] for head in kept]])
    assert fate(kept_LHT, [1, 2], score, memory=memory) == said


def test_the_fate_without_a_reference_in_the_text_is_that_of_the_answer() -> None:
    assert fate(np.ones((1, 1, 3), bool), [], 0.0, memory=False) == "Answered wrong."
    assert fate(np.empty((0,)), [1], 1.0, memory=False) == "Answered."


def test_large_layers_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make_rows(samples=1, failures=0)
    retention = with_layers(make_retention(rows, tokens=60))
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

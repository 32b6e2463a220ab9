"""Names that MLflow accepts, and distinct where the originals were."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlflow.utils.validation import _validate_logged_model_name, _validate_metric_name

from indexmem.config.budget import Budget
from indexmem.tracking.naming import MAX_LABEL, budget_label, clip, labels, metric_name, model_name, value_text


@given(st.sets(st.text(max_size=300), max_size=6))
def test_labels_are_accepted_and_distinct(texts: set[str]) -> None:
    named = labels(texts)
    assert named.keys() == texts
    assert len(set(named.values())) == len(texts)
    for label in named.values():
        _validate_metric_name(f"score/{label}/r0.50")
        assert len(label) <= MAX_LABEL


def test_labels_stay_readable() -> None:
    assert labels(["full", "snapkv(window_size=64,kernel=5)"]) == {
        "full": "full",
        "snapkv(window_size=64,kernel=5)": "snapkv_window_size_64_kernel_5",
    }


def test_metric_names_keep_their_groups() -> None:
    assert metric_name("loss/layer 3") == "loss/layer 3"
    assert metric_name("recall@10%") == "recall_10_"


@given(st.sets(st.floats(0, 0.999), min_size=2, max_size=2))
def test_ratio_labels_differ_where_six_digits_do(ratios: set[float]) -> None:
    one, other = ratios
    if f"{one:.6g}" != f"{other:.6g}":
        assert budget_label(Budget.of_ratio(one)) != budget_label(Budget.of_ratio(other))
    assert budget_label(Budget.of_ratio(0.5)) == "r0.50"


def test_labels_of_other_budgets_are_accepted_too() -> None:
    found = [budget_label(Budget.parse(text)) for text in ("512 tokens", "8 MiB", "1.5 GiB")]
    assert found == ["512tokens", "8MiB", "1.5GiB"]
    for label in found:
        _validate_metric_name(f"score/snapkv/{label}")


@given(st.text(max_size=400), st.text(max_size=400), st.integers(80, 200))
def test_clipped_texts_fit_and_stay_different(one: str, other: str, limit: int) -> None:
    assert len(clip(one, limit)) <= limit
    assert clip(one, limit) == one or len(one) > limit
    assert (clip(one, limit) == clip(other, limit)) == (one == other)


@pytest.mark.parametrize(("name", "published"), [("lr0.01", "lr0_01"), ("a.b-c_d", "a_b-c_d"), ("plain", "plain")])
def test_a_spec_of_any_name_has_a_name_for_its_model(name: str, published: str) -> None:
    assert model_name(name) == published
    _validate_logged_model_name(published)


def test_values_read_like_overrides() -> None:
    assert [value_text(v) for v in ("essays", None, True, 0.5, ["a", 1])] == [
        "essays", "null", "true", "0.5", '["a", 1]',
    ]  # fmt: skip

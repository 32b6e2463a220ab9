"""Budgets: what can be written, what it means, how it is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexmem.config.budget import NOTHING_EVICTED, Budget
from indexmem.config.load import validate, with_overrides
from indexmem.config.spec import content_hash
from indexmem.errors import UserError

RATIOS = st.floats(0, 1, exclude_max=True).map(Budget.of_ratio)
TOKENS = st.integers(1, 10**7).map(lambda n: Budget("tokens", n))
BYTES = st.integers(1, 2**45).map(lambda n: Budget("bytes", n))


@pytest.mark.parametrize(
    ("written", "kind", "amount", "text"),
    [
        (0.75, "ratio", 0.75, "75%"),
        (0, "ratio", 0.0, "0%"),
        ("0.975", "ratio", 0.975, "97.5%"),
        ("75%", "ratio", 0.75, "75%"),
        (1e-05, "ratio", 1e-05, "0.001%"),
        ("512 tokens", "tokens", 512, "512 tokens"),
        ("1token", "tokens", 1, "1 token"),
        ("8 MiB", "bytes", 8 * 2**20, "8 MiB"),
        ("8mb", "bytes", 8 * 10**6, "8 MB"),
        ("1.5 GiB", "bytes", 3 * 2**29, "1.5 GiB"),
        ("0.7 GiB", "bytes", 751619276, "716.8 MiB"),
        ("1000 KiB", "bytes", 1024000, "1.024 MB"),
        ("1234567 B", "bytes", 1234567, "1205.632 KiB"),
        ("999 b", "bytes", 999, "999 B"),
    ],
)
def test_written_and_shown(written, kind, amount, text):
    budget = Budget.parse(written)
    assert (budget.kind, budget.amount, str(budget)) == (kind, amount, text)


@given(st.one_of(RATIOS, TOKENS, BYTES))
def test_the_text_says_it_all(budget):
    assert Budget.parse(str(budget)) == budget


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (1.0, "a share that is evicted lies in"),
        (512, r"lies in \[0, 1\); expected 0.75 .evicted share., '512 tokens'"),
        ("120%", "lies in"),
        ("12.5 tokens", "use '12 tokens'"),
        ("0 tokens", "a budget of nothing"),
        ("0.5 B", "a budget of nothing"),
        ("8 Mibs", "unknown unit 'Mibs'; use tokens, % or one of GiB"),
        ("-3 tokens", "no budget; expected 0.75"),
        (True, "no budget"),
        (None, "no budget"),
        ("nan", "no budget"),
        ([0.5], "no budget"),
    ],
)
def test_refused(written, words):
    with pytest.raises(ValueError, match=words):
        Budget.parse(written)


def test_order_groups_kinds_and_evicts_more_to_the_right():
    texts = ["25%", "90%", "1024 tokens", "512 tokens", "1 GiB", "8 MiB"]
    assert [str(budget) for budget in sorted(map(Budget.parse, reversed(texts)))] == texts


def test_phrases():
    assert [Budget.parse(text).phrase for text in (0.9, "512 tokens", "8 MiB")] == [
        "90% evicted", "512 tokens kept", "8 MiB in all",
    ]  # fmt: skip


def test_the_identity_of_a_ratio_is_what_it_was_before_there_were_other_kinds():
    assert content_hash({"engine": 1} | Budget.parse(0.5).identity) == content_hash({"engine": 1, "ratio": 0.5})
    assert NOTHING_EVICTED.identity == {"ratio": 0.0}
    identities = [content_hash(Budget.parse(text).identity) for text in (0.5, "512 tokens", "512 B")]
    assert len(set(identities)) == 3


def budgets_of(**grid):
    return [str(budget) for budget in validate({"grid": grid}, "test").grid.requested]


def test_a_spec_lists_ratios_and_budgets_side_by_side():
    assert budgets_of() == ["25%", "50%", "75%", "90%"]
    assert budgets_of(ratios=[0.5], budgets=[0.75, "512 tokens", "8 MiB"]) == ["50%", "75%", "512 tokens", "8 MiB"]
    assert budgets_of(ratios=[], budgets=["2 KiB"]) == ["2 KiB"]


def test_budgets_survive_the_way_to_a_worker_and_the_command_line():
    spec = with_overrides(validate({}, "test"), ["grid.budgets=[512 tokens, 1.5 MiB]"])
    assert validate(spec.model_dump(mode="json"), "test") == spec
    assert spec.model_dump(mode="json")["grid"]["budgets"] == ["512 tokens", "1.5 MiB"]


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({"budgets": ["8 MB", "12 bits"]}, r"'grid.budgets.1': unknown unit 'bits'.*, got '12 bits'"),
        ({"budgets": ["8 MiB", "8192 KiB"]}, "budgets lists a value twice"),
        ({"ratios": [0.5], "budgets": ["50%"]}, "ratios and budgets both list 50%"),
    ],
)
def test_a_spec_with_a_mistake(grid, words):
    with pytest.raises(UserError, match=words):
        validate({"grid": grid}, "test")


@pytest.mark.parametrize("amount", ["1e400 tokens", "1e99 GiB", "1e999999999 tokens", "2000000000000000 B"])
def test_more_than_any_cache_is_refused(amount):
    with pytest.raises(ValueError, match="more than any cache holds"):
        Budget.parse(amount)


def test_an_exponent_of_many_digits_is_refused():
    for unit in ("", " tokens", "%", " GiB"):
        with pytest.raises(ValueError, match="no number that a budget can be"):
            Budget.parse(f"1e{'9' * 30}{unit}")

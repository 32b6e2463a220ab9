"""The benchmark `fidelity`: passages of a text that share no token, scored by agreement with the full cache."""

import pytest
from grids import remaining
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import save_tiny_model, tiny_backbone

from indexmem.benchmarks.base import BuildContext
from indexmem.benchmarks.continuation import READ_BEHIND, Continuation
from indexmem.config.load import validate
from indexmem.errors import UserError
from indexmem.evaluate.cell import CellEvaluator
from indexmem.evaluate.grid import plan
from indexmem.evaluate.prompts import Prompt

TEXT = " ".join(str(number * number * 7919) for number in range(100, 900))  # no stretch of it comes twice
TOKENIZER = tiny_backbone().tokenizer


def samples(length: int, new: int, count: int, seed: int = 0, text: str = TEXT):
    benchmark = Continuation(path=None, max_new_tokens=new)
    return list(benchmark.samples(count, BuildContext(TOKENIZER, length, seed, text)))


@settings(max_examples=20)
@given(length=st.integers(80, 400), new=st.integers(1, 40), seed=st.integers(0, 9))
def test_passages_fit_share_no_token_and_are_read_in_order(length, new, seed):
    found = samples(length, new, 50, seed)
    for sample in found:
        prompt = Prompt.of(sample, TOKENIZER)
        assert len(prompt.context_ids) + len(prompt.question_ids) + new <= length + 1  # a seam may cost one token
        assert len(prompt.context_ids) >= length - new - READ_BEHIND - 8
        assert sample.context + sample.question in TEXT
    whole = "".join(sample.context + sample.question for sample in found)
    assert len(whole) <= len(TEXT)
    assert len({sample.context for sample in found}) == len(found)
    assert samples(length, new, 2, seed) == found[:2], "more samples extend fewer"


def test_a_text_that_is_too_short_is_named():
    with pytest.raises(UserError, match=r"asks for passages of 460 tokens, and 32 behind each; the text has \d+. "):
        samples(500, 8, 1, text="A short text. " * 3)
    with pytest.raises(UserError, match="passages of -2 tokens"):
        samples(40, 10, 1)


def experiment(tmp_path, **grid):
    (tmp_path / "text.txt").write_text(TEXT)
    settings = {
        "methods": ["full", "knorm", "random"],
        "ratios": [0.5, 0.9],
        "benchmarks": [{"name": "fidelity", "params": {"path": str(tmp_path / "text.txt"), "max_new_tokens": 6}}],
        "length": 160,
        "samples": 3,
        "haystack": str(tmp_path / "text.txt"),
        "fidelity": True,
    }
    model = {"id": str(save_tiny_model(tmp_path / "model", "llama"))}
    return validate({"model": model, "run": {"root": str(tmp_path)}, "grid": settings | grid}, "test")


def test_rows_are_scored_by_agreement_with_the_full_cache(tmp_path):
    spec = experiment(tmp_path)
    methods = {config.label: config for config in spec.grid.methods}
    provenance = {"git_commit": "", "versions": {}, "host": ""}
    rows, _ = CellEvaluator.load(spec, methods, None, provenance).evaluate(remaining(plan(spec)))
    assert {row["status"] for row in rows} == {"ok"}
    assert len(rows) == 3 * (1 + 2 * 2)
    assert all(row["score"] == row["fidelity_top1"] for row in rows)
    assert {row["score"] for row in rows if row["method"] == "full"} == {1.0}
    assert any(row["fidelity_kl"] > 0 for row in rows)


def test_without_the_full_cache_there_is_nothing_to_be_held_to(tmp_path):
    with pytest.raises(UserError, match=r"Set grid.fidelity=true"):
        plan(experiment(tmp_path, fidelity=False))

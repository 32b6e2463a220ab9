"""Drawn answers: the right distribution, the same text in any batch, and answers that end where they should."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tiny_models import random_ids, tiny_backbone

from indexmem.config.decoding import DecodingConfig
from indexmem.config.schema import EvictionConfig, MethodConfig
from indexmem.engine.decode import DecodeRow, decode
from indexmem.engine.prefill import prefill
from indexmem.engine.recompress import Compression
from indexmem.engine.sampling import Endings, RowChoice, TokenChoice, draw
from indexmem.engine.steps import Steps
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.registry import make_method

PLENTY = 2**34
WARM = DecodingConfig(temperature=1.5)
CPU = torch.device("cpu")


def share_of_draws(logits, config, draws=2000):
    """Which share of evenly spaced uniform numbers leads to each token."""
    uniform_R1 = (torch.arange(draws) + 0.5)[:, None] / draws
    tokens = draw(torch.tensor([logits]).expand(draws, -1), uniform_R1, config)
    return torch.bincount(tokens, minlength=len(logits)) / draws


def test_tokens_come_as_often_as_the_model_says():
    logits = [0.0, 2.0, -1.0, 1.0]
    for temperature in (0.5, 1.0, 3.0):
        expected = (torch.tensor(logits) / temperature).softmax(0)
        assert torch.allclose(share_of_draws(logits, DecodingConfig(temperature=temperature)), expected, atol=1e-3)


def test_top_k_and_top_p_leave_the_likeliest():
    logits = torch.tensor([0.1, 0.4, 0.2, 0.3]).log().tolist()
    shares = share_of_draws(logits, DecodingConfig(temperature=1, top_k=2))
    assert torch.allclose(shares, torch.tensor([0, 4 / 7, 0, 3 / 7]), atol=1e-3)
    shares = share_of_draws(logits, DecodingConfig(temperature=1, top_p=0.5))  # the one that crosses it stays
    assert torch.allclose(shares, torch.tensor([0, 4 / 7, 0, 3 / 7]), atol=1e-3)
    shares = share_of_draws(logits, DecodingConfig(temperature=1, top_k=3, top_p=0.4))  # 4/9 of the three reach it
    assert shares.tolist() == [0, 1, 0, 0]


@settings(max_examples=50)
@given(
    logits=st.lists(st.floats(-30, 30), min_size=1, max_size=12),
    uniform=st.floats(0, 1, exclude_max=True, width=32),
    top_k=st.integers(0, 15),
    top_p=st.floats(0.01, 1),
)
def test_a_draw_is_among_the_k_likeliest(logits, uniform, top_k, top_p):
    config = DecodingConfig(temperature=1.0, top_k=top_k, top_p=top_p)
    logits_RV = torch.tensor([logits])
    token = int(draw(logits_RV, torch.tensor([[uniform]]), config))
    better = int((logits_RV[0].softmax(0) > logits_RV[0].softmax(0)[token]).sum())
    assert better < (top_k or len(logits))


def test_agrees_with_transformers_about_what_may_be_drawn():
    from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits_RV = torch.randn(1, 300, generator=torch.Generator().manual_seed(3)) * 3
    warpers = LogitsProcessorList([TemperatureLogitsWarper(0.6), TopKLogitsWarper(20), TopPLogitsWarper(0.95)])
    expected = warpers(torch.zeros(1, 1, dtype=torch.long), logits_RV.clone()).softmax(-1)[0]
    config = DecodingConfig(temperature=0.6, top_p=0.95, top_k=20)
    assert torch.allclose(share_of_draws(logits_RV[0].tolist(), config, 5000), expected, atol=1e-3)


def rows_of(count=6, limit=14, backbone=None):
    backbone = backbone or tiny_backbone("llama")
    names = ("full", "knorm", "snapkv")
    methods = {name: make_method(MethodConfig(name=name), MethodContext(backbone.geometry)) for name in names}
    rows = []
    for number in range(count):
        length, name = 90 + 7 * number, names[number % 3]
        done = prefill(backbone, random_ids(length, seed=number), methods, sinks=4)
        kept = length if name == "full" else length / 2
        cache = methods[name].compress(done.context, done.rankings_HL[name], kept)
        question = random_ids(4 + number, seed=50 + number)
        rows.append(DecodeRow(cache, length, question, limit + number, seed=number))
    return backbone, rows


def test_a_row_gets_the_same_text_in_any_batch():
    backbone, rows = rows_of()
    together = [a.token_ids for a in decode(backbone, rows, PLENTY, WARM)]
    alone = [decode(backbone, [row], PLENTY, WARM)[0].token_ids for row in rows]
    backwards = [a.token_ids for a in decode(backbone, rows[::-1], PLENTY, WARM)][::-1]
    assert together == alone == backwards
    greedy = [a.token_ids for a in decode(backbone, rows, PLENTY)]
    assert together != greedy


def test_seeds_and_not_places_decide():
    backbone, (row, *_) = rows_of(1)
    texts = decode(backbone, [replace(row, seed=seed) for seed in (1, 2, 1)], PLENTY, WARM)
    assert texts[0].token_ids == texts[2].token_ids
    assert texts[0].token_ids != texts[1].token_ids


def test_rows_that_leave_the_batch_do_not_move_the_others_draws():
    """Short rows finish first, which cuts the batch; what stays goes on with its own numbers."""
    backbone, rows = rows_of()
    rows = [replace(row, max_new_tokens=3 if number % 2 else 20) for number, row in enumerate(rows)]
    together = [a.token_ids for a in decode(backbone, rows, PLENTY, WARM)]
    assert together == [decode(backbone, [row], PLENTY, WARM)[0].token_ids for row in rows]


def test_a_cold_draw_is_greedy():
    backbone, rows = rows_of(3)
    cold = decode(backbone, rows, PLENTY, DecodingConfig(temperature=1e-4))
    assert [a.token_ids for a in cold] == [a.token_ids for a in decode(backbone, rows, PLENTY)]


def test_settings_without_effect_are_refused():
    for wrong in ({"top_p": 0.9}, {"top_k": 5}, {"repeats": 4}):
        with pytest.raises(ValidationError, match="no effect on greedy answers"):
            DecodingConfig(**wrong)
    assert DecodingConfig().identity == {}
    warm = DecodingConfig(temperature=0.6, top_p=0.95, repeats=4)
    assert warm.identity == DecodingConfig(temperature=0.6, top_p=0.95, repeats=8).identity != {}


def test_an_answer_that_ends_is_not_truncated():
    backbone, (row, *_) = rows_of(1)
    free = decode(backbone, [row], PLENTY)[0]
    assert (free.ended, len(free.token_ids)) == (False, row.max_new_tokens)
    ending = free.token_ids[2]
    end = free.token_ids.index(ending)
    model, before = backbone.model, backbone.model.generation_config.eos_token_id
    model.generation_config.eos_token_id = [1, ending]
    try:
        stopped = decode(backbone, [row], PLENTY)[0]
        exactly = decode(backbone, [replace(row, max_new_tokens=end + 1)], PLENTY)[0]
        short = decode(backbone, [replace(row, max_new_tokens=end)], PLENTY)[0] if end else None
        longer = decode(backbone, [replace(row, min_new_tokens=end + 2)], PLENTY)[0]
    finally:
        model.generation_config.eos_token_id = before
    assert (stopped.ended, stopped.token_ids) == (True, free.token_ids[: end + 1])
    assert (exactly.ended, exactly.token_ids) == (True, stopped.token_ids), "ended with its last token"
    assert short is None or not short.ended
    assert ending not in longer.token_ids[: end + 2]
    assert len(longer.token_ids) >= end + 2


def test_a_text_ends_an_answer_once_it_may():
    backbone, (row, *_) = rows_of(1, limit=30)
    free = decode(backbone, [row], PLENTY)[0].token_ids
    text = backbone.tokenizer.decode(free, skip_special_tokens=True)
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    stopped = decode(backbone, [replace(row, stop=("never there", stop))], PLENTY)[0]
    assert stopped.ended
    assert len(stopped.token_ids) < len(free)
    given = backbone.tokenizer.decode(stopped.token_ids, skip_special_tokens=True)
    assert stop in given
    assert stop not in backbone.tokenizer.decode(stopped.token_ids[:-1], skip_special_tokens=True)


def test_a_stop_within_the_least_length_is_not_seen():
    tokenizer = tiny_backbone("llama").tokenizer
    ids = tokenizer.encode("ab\ncd\n", add_special_tokens=False)
    ends = Endings(tokenizer, [1], ["\n"], min_new_tokens=0)
    assert [ends.reached(ids[: n + 1]) for n in range(len(ids))].index(True) == ids.index(ends.forbidden[-1])
    late = Endings(tokenizer, [1], ["\n"], min_new_tokens=ids.index(ends.forbidden[-1]) + 1)
    assert [late.reached(ids[: n + 1]) for n in range(len(ids))].index(True) == len(ids) - 1


def test_forbidden_tokens_are_the_rows_own():
    logits_RV = torch.tensor([[0.0, 5.0, 3.0]]).expand(2, 3)
    choice = TokenChoice([RowChoice(4, 0, (1,), 2), RowChoice(4, 0, (1,), 0)], DecodingConfig(), CPU)
    assert [choice(logits_RV).tolist() for _ in range(3)] == [[2, 1], [2, 1], [1, 1]]
    choice = TokenChoice([RowChoice(4, 0, (1,), 2), RowChoice(4, 0, (1,), 0)], DecodingConfig(), CPU)
    choice(logits_RV)
    choice.select(torch.tensor([0]))
    assert [choice(logits_RV[:1]).tolist() for _ in range(2)] == [[2], [1]]


def test_held_tokens_of_a_cache_that_grows():
    """Kept tokens, the question, and one more after each step; the last token is never fed."""
    backbone, rows = rows_of(3)
    for answer, row in zip(decode(backbone, rows, PLENTY), rows):
        kept = np.array([row.cache.lengths(layer) for layer in range(3)])
        steps = np.arange(len(answer.token_ids))
        assert answer.held_mean == pytest.approx(kept.mean() + len(row.question_ids) + steps.mean())
        assert answer.held_max == kept.max() + len(row.question_ids) + steps[-1]


def test_held_tokens_under_a_budget_are_what_it_allows():
    backbone = tiny_backbone("llama")
    config = EvictionConfig(sinks=2, decode_budget=40, decode_every=8, decode_window=8)
    method = make_method(MethodConfig(name="knorm"), MethodContext(backbone.geometry))
    done = prefill(backbone, random_ids(40), {"knorm": method}, sinks=2)
    cache = method.compress(done.context, done.rankings_HL["knorm"], 40)
    row = DecodeRow(cache, 40, random_ids(6, seed=1), 50, Compression(method, config.decode_budget, config))
    answer = decode(backbone, [row], PLENTY)[0]
    assert len(answer.token_ids) == 50, "or this shows nothing"
    # The first step holds context and question; then the cache goes back to 40 and grows by 8 before it does again.
    held = [46] + [40 + 1 + step % 8 for step in range(49)]
    assert answer.held_max == 48
    assert answer.held_mean == pytest.approx(sum(held) / 50)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_captured_steps_draw_what_eager_ones_draw(monkeypatch):
    tiny = tiny_backbone("llama")
    backbone, rows = rows_of(limit=40, backbone=replace(tiny, model=deepcopy(tiny.model).to("cuda")))
    captured = [a.token_ids for a in decode(backbone, rows, PLENTY, WARM)]
    monkeypatch.setattr(Steps, "next", lambda self, token, position, _: self._feed_one(token, position))
    assert captured == [a.token_ids for a in decode(backbone, rows, PLENTY, WARM)]

"""Options by their likelihood: against transformers in fp64, and cell by cell where tokens are evicted."""

from dataclasses import replace

import pytest
import torch
from forced_reference import LENGTH, QUESTION, alone, rows_of
from generating import plain
from tiny_models import FAMILIES

from indexmem.config.decoding import DecodingConfig
from indexmem.engine.decode import decode
from indexmem.engine.options import answers_of, choose

LETTERS = ((7,), (8,), (9,))
TEXTS = ((7,), (7, 9, 4), (7, 9, 5), (11, 3))


def by_definition(backbone, row, option) -> float:
    """Log-likelihood, one token fed at a time."""
    log_mV = alone(backbone, row, list(option)).log_softmax(-1)
    return sum(float(log_V[token]) for log_V, token in zip(log_mV, option))


@pytest.mark.parametrize("family", FAMILIES)
def test_all_cells_and_options_at_once_equal_the_definition(family):
    backbone, _, rows, _ = rows_of(family, 0.7)
    shorter = {name: replace(row, question_ids=QUESTION[:3]) for name, row in rows.items()}
    asked = [replace(row, options=TEXTS) for row in rows.values()]
    asked += [replace(row, options=LETTERS) for row in shorter.values()]
    found = choose(backbone, asked)
    for row, answer in zip(asked, found):
        expected = [by_definition(backbone, row, option) for option in row.options]
        assert answer.likelihoods == pytest.approx(expected, rel=1e-4, abs=1e-4)
        assert answer.token_ids == list(row.options[expected.index(max(expected))])
    assert found[0].likelihoods != found[1].likelihoods, "eviction must show, or equality says nothing"


def test_the_full_cache_agrees_with_transformers():
    backbone, ids, rows, _ = rows_of("llama", 0.5)
    (answer,) = choose(backbone, [replace(rows["full"], options=TEXTS)])
    for option, nats in zip(TEXTS, answer.likelihoods):
        with torch.no_grad():
            logits_1LV = plain("llama")(torch.tensor([[*ids, *QUESTION, *option]])).logits
        log_LV = logits_1LV[0].double().log_softmax(-1)
        before = LENGTH + len(QUESTION) - 1
        assert nats == pytest.approx(sum(float(log_LV[before + i, token]) for i, token in enumerate(option)), rel=1e-4)


def test_a_batch_of_any_size_gives_the_same_and_answers_keep_their_order():
    backbone, _, rows, _ = rows_of("llama", 0.7)
    written = list(rows.values())
    asked = [replace(row, options=TEXTS) for row in written]
    mixed = [row for pair in zip(written, asked) for row in pair]
    answers = answers_of(backbone, mixed, None, DecodingConfig())
    assert [one.token_ids for one in answers[::2]] == [one.token_ids for one in decode(backbone, written)]
    for whole, single in zip(answers[1::2], choose(backbone, asked, batch_bytes=1)):
        assert whole.likelihoods == pytest.approx(single.likelihoods, rel=1e-4)
    assert answers[1].held_max == LENGTH + len(QUESTION) + 2, "the longest option's last token is never read"


def test_letters_take_one_row_for_all_of_them(monkeypatch):
    backbone, _, rows, _ = rows_of("llama", 0.7)
    read = []
    monkeypatch.setattr(
        "indexmem.engine.options.forced_row",
        lambda row, ids: read.append(ids) or replace(row, question_ids=[*row.question_ids, *ids[:-1]]),
    )
    choose(backbone, [replace(rows["full"], options=(*LETTERS, (1, 2)))])
    assert [ids[:-1] for ids in read] == [(), (1,)]

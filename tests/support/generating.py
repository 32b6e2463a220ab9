"""Answers by an IndexMemCache in transformers' `generate`, and by our engine from the same context."""

import torch
from press_cases import SINKS
from tiny_models import random_ids, tiny_backbone, tiny_model

from indexmem.config.budget import Budget
from indexmem.config.schema import MethodConfig
from indexmem.engine.decode import DecodeRow, decode
from indexmem.engine.prefill import prefill
from indexmem.eviction.footprint import target_of
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.registry import make_method

NEW = 12  # tokens of an answer


def plain(family="llama"):
    """A model as users load it."""
    return tiny_model(family, "sdpa")


def engine_answer(family, context_ids, question_ids, method, ratio, folder=None, new=NEW):
    backbone = tiny_backbone(family)
    made = make_method(
        MethodConfig.model_validate(method), MethodContext(backbone.geometry, checkpoint=folder, floor=0.1)
    )
    done = prefill(backbone, context_ids, {"it": made}, SINKS)
    assert not done.errors
    tokens = len(context_ids)
    row = made.compress(
        done.context, done.rankings_HL["it"], target_of(made, Budget.of_ratio(ratio), tokens, tokens * (1 - ratio))
    )
    (answer,) = decode(backbone, [DecodeRow(row, tokens, question_ids, new, min_new_tokens=new)])
    return answer.token_ids


def padded(rows):
    """input_ids and attention_mask of rows of unequal length, padded on the left."""
    longest = max(map(len, rows))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
    return {"input_ids": ids, "attention_mask": mask}


@torch.no_grad()
def read(model, cache, rows):
    """Fill the cache with contexts."""
    model(**padded(rows), past_key_values=cache)
    return cache


def generated(model, cache, inputs, new=NEW, **settings):
    """The new tokens of each row; none ends early."""
    settings = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0} | settings
    sequences = model.generate(**inputs, past_key_values=cache, **settings)
    return sequences[:, inputs["input_ids"].shape[1] :].tolist()


def asked(model, cache, contexts, questions, new=NEW):
    """Answers to questions behind contexts that are read first, and evicted from."""
    read(model, cache, contexts)
    length = len(questions[0])
    assert all(len(question) == length for question in questions)
    inputs = padded(contexts)
    asking = {
        "input_ids": torch.cat((inputs["input_ids"], torch.tensor(questions)), dim=1),
        "attention_mask": torch.nn.functional.pad(inputs["attention_mask"], (0, length), value=1),
    }
    return generated(model, cache, asking, new)


def texts(lengths, seed=0):
    return [random_ids(length, seed + row) for row, length in enumerate(lengths)]

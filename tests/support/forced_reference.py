"""A context compressed by several methods, and what the model says token by token behind each of their caches."""

import torch
from tiny_models import random_ids, tiny_backbone

from indexmem.config.budget import Budget
from indexmem.config.schema import MethodConfig
from indexmem.engine.decode import DecodeRow, decode
from indexmem.engine.forced import forced_logits
from indexmem.engine.prefill import prefill
from indexmem.eviction.footprint import target_of
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.registry import make_method

LENGTH, SINKS, NEW = 90, 2, 7
QUESTION = random_ids(6, seed=3)
METHODS = ("full", "knorm", "streaming_llm", "pyramidkv")


def rows_of(family: str, ratio: float, seed: int = 1) -> tuple:
    backbone, ids = tiny_backbone(family), random_ids(LENGTH, seed=seed)
    context = MethodContext(backbone.geometry)
    methods = {name: make_method(MethodConfig(name=name), context) for name in METHODS}
    done = prefill(backbone, ids, methods, SINKS)
    rows = {}
    for name, method in methods.items():
        budget = Budget.of_ratio(0.0 if name == "full" else ratio)
        target = target_of(method, budget, LENGTH, LENGTH * (1 - budget.ratio))
        cache = method.compress(done.context, done.rankings_HL[name], target)
        rows[name] = DecodeRow(cache, LENGTH, QUESTION, NEW, min_new_tokens=NEW)
    (answer,) = decode(backbone, [rows["full"]])
    return backbone, ids, rows, answer.token_ids


def alone(backbone, row, answer_ids):
    """Logits before each answer token, fed one token at a time into the row's own cache, in a batch of one."""
    seen = []
    forced = [*row.question_ids, *answer_ids[:-1]]
    for end in range(len(row.question_ids), len(forced) + 1):
        one = DecodeRow(row.cache, row.context_tokens, forced[:end], 1)
        seen.append(forced_logits(backbone, [one], 1)[0, -1])
    return torch.stack(seen).double()

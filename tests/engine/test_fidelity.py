"""Distances from the full cache's probabilities: against transformers with the evicted tokens masked, in fp64."""

import pytest
import torch
from generating import plain
from tiny_models import FAMILIES, random_ids, tiny_backbone

from indexmem.config.budget import Budget
from indexmem.config.schema import MethodConfig
from indexmem.engine.decode import DecodeRow, decode
from indexmem.engine.fidelity import Fidelity, _forced_logits, fidelity
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
        seen.append(_forced_logits(backbone, [one], 1)[0, -1])
    return torch.stack(seen).double()


def reference(full_mV, cell_mV) -> tuple[float, float]:
    """By the definition, token by token, in fp64."""
    kl, same = [], []
    for full_V, cell_V in zip(full_mV, cell_mV):
        p, q = full_V.softmax(-1), cell_V.softmax(-1)
        kl.append(sum(float(a * (a / b).log()) for a, b in zip(p, q)))
        same.append(float(p.argmax() == q.argmax()))
    return sum(kl) / len(kl), sum(same) / len(same)


@pytest.mark.parametrize("family", FAMILIES)
def test_all_cells_at_once_equal_the_definition(family):
    backbone, _, rows, answer = rows_of(family, 0.7)
    found = fidelity(backbone, rows["full"], list(rows.values()), answer)
    full_mV = alone(backbone, rows["full"], answer)
    for row, one in zip(rows.values(), found):
        kl, top1 = reference(full_mV, alone(backbone, row, answer))
        assert one.kl == pytest.approx(kl, rel=1e-3, abs=1e-6)
        assert one.top1 == pytest.approx(top1)
    assert found[0].kl < 1e-6
    assert found[0].top1 == 1.0
    assert min(one.kl for one in found[1:]) > 1e-4, "eviction must show, or equality says nothing"


def test_the_full_cache_agrees_with_transformers():
    backbone, ids, rows, answer = rows_of("llama", 0.5)
    with torch.no_grad():
        logits_1LV = plain("llama")(torch.tensor([[*ids, *QUESTION, *answer[:-1]]])).logits
    full_mV = logits_1LV[0, -NEW:].double()
    (found,) = fidelity(backbone, rows["full"], [rows["knorm"]], answer)
    kl, top1 = reference(full_mV, alone(backbone, rows["knorm"], answer))
    assert found.kl == pytest.approx(kl, rel=1e-3)
    assert found.top1 == pytest.approx(top1)


def test_nothing_evicted_is_no_distance_whatever_the_batch():
    backbone, _, rows, answer = rows_of("llama", 0.0)
    for batch_bytes in (1, None):
        for one in fidelity(backbone, rows["full"], list(rows.values()), answer, batch_bytes):
            assert one.kl < 1e-6
            assert one.top1 == 1.0


def test_rounding_gives_no_distance_below_zero():
    logits_mV = torch.tensor([[1.0, 2.0, 3.0]])
    assert Fidelity.of(logits_mV, logits_mV + 1e-7) == Fidelity(0.0, 1.0)

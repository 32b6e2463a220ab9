"""Distances from the full cache's probabilities: against transformers with the evicted tokens masked, in fp64."""

import pytest
import torch
from forced_reference import NEW, QUESTION, alone, rows_of
from generating import plain
from tiny_models import FAMILIES

from indexmem.engine.fidelity import Fidelity, fidelity


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

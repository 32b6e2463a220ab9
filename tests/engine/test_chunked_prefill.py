"""A prefill in chunks shows every layer as one pass does."""

import pytest
import torch
from tiny_models import FAMILIES, WINDOW, random_ids, tiny_backbone

from indexmem.config.schema import MethodConfig
from indexmem.engine.prefill import prefill
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.registry import make_method

LENGTH = 150


@pytest.mark.parametrize("chunk", [1, 37, 64, LENGTH, 1000])
@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_give_what_one_pass_gives(family, chunk):
    backbone = tiny_backbone(family)
    context = MethodContext(backbone.geometry)
    methods = {name: make_method(MethodConfig(name=name), context) for name in ("snapkv", "knorm", "keydiff")}
    whole = prefill(backbone, random_ids(LENGTH), methods, sinks=4)
    parts = prefill(backbone, random_ids(LENGTH), methods, sinks=4, chunk=chunk)
    assert not parts.errors
    assert parts.context.layers == whole.context.layers
    for ours, theirs in zip(
        parts.context.keys_HLd + parts.context.values_HLd, whole.context.keys_HLd + whole.context.values_HLd
    ):
        torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=2e-4)
    for ours, theirs in zip(parts.context.windows, whole.context.windows, strict=True):
        assert ours.layer == theirs.layer
        assert ours.keys_HWd.shape[1] == WINDOW - 1
        torch.testing.assert_close(ours.keys_HWd, theirs.keys_HWd, atol=2e-4, rtol=2e-4)
        torch.testing.assert_close(ours.values_HWd, theirs.values_HWd, atol=2e-4, rtol=2e-4)
    for name in methods:
        for ours, theirs in zip(parts.rankings_HL[name], whole.rankings_HL[name], strict=True):
            assert (
                ours[:, : LENGTH // 2].sort().values == theirs[:, : LENGTH // 2].sort().values
            ).float().mean() > 0.97
    assert parts.seconds > 0
    assert set(parts.score_seconds) == set(methods)
    assert all(seconds > 0 for seconds in parts.score_seconds.values())


def test_the_tap_is_that_of_the_whole_context():
    backbone, seen = tiny_backbone("qwen3"), []
    method = make_method(MethodConfig(name="tova"), MethodContext(backbone.geometry))
    real = method.score
    method.score = lambda tap: (seen.append(tap), real(tap))[1]
    prefill(backbone, random_ids(90), {"tova": method}, sinks=4, chunk=40)
    prefill(backbone, random_ids(90), {"tova": method}, sinks=4)
    chunked, whole = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    for ours, theirs in zip(chunked, whole, strict=True):
        assert ours.layer == theirs.layer
        for name in ("hidden_BLD", "query_BQLd", "cos_BLr", "sin_BLr"):
            torch.testing.assert_close(getattr(ours, name), getattr(theirs, name), atol=2e-4, rtol=2e-4)

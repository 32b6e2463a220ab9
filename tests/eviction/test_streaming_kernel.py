"""The indexer's GPU kernel gives the maxima of the streamed score blocks, and queries that reach them."""

import pytest
import torch

from indexmem.eviction.indexer import Features, Indexer, IndexerShape
from indexmem.eviction.streaming import causal_max, has_fused_kernel


def test_on_a_cpu_blocks_of_scores_are_streamed():
    assert not has_fused_kernel(torch.zeros(1, 4, 2))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("activation", ["relu", "softplus", "identity"])
@pytest.mark.parametrize(
    ("heads", "dim", "rows", "lengths"), [(2, 4, 3, (150, 97)), (3, 16, 1, (200, 200)), (1, 20, 2, (65, 1))]
)
def test_the_kernel_gives_the_same(activation, heads, dim, rows, lengths):
    torch.manual_seed(0)
    batch, length = len(lengths), max(lengths)
    q = torch.nn.functional.rms_norm(torch.randn(batch, length, rows, heads, dim), (dim,))
    k = torch.nn.functional.rms_norm(torch.randn(batch, length, dim), (dim,))
    features = Features(q.cuda(), k.cuda(), torch.randn(batch, length, rows, heads).cuda())
    indexer, lengths_B = (
        Indexer(IndexerShape("kv_head", heads, dim, activation, rows), 8, 8),
        torch.tensor(lengths).cuda(),
    )
    assert has_fused_kernel(features.k_BTi)
    best, _ = causal_max(lambda start, stop: indexer.score_rows(features, start, stop), lengths_B, rows)
    with torch.no_grad():
        found, winner = indexer._maxima(features, lengths_B, None)
    torch.testing.assert_close(found, best, atol=1e-4, rtol=1e-4)
    real = torch.arange(length, device="cuda") < lengths_B[:, None, None]
    reached = indexer._winning_scores(features, winner)
    torch.testing.assert_close(reached[real.expand_as(reached)], best[real.expand_as(best)], atol=1e-4, rtol=1e-4)
    positions = torch.arange(length, device="cuda")
    assert bool((winner >= positions).all()) and bool((winner[~real.expand_as(winner)] < length).all())

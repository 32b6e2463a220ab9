"""The replayed clustering: padding changes nothing, and on a GPU a graph gives what its kernels give one by one."""

import pytest
import torch

from indexmem.eviction.memory.clustering import LLOYD_ITERATIONS, k_means, lloyd, replayed


def points(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    point = torch.randn(2, 3, count, 8, generator=generator)
    weight = torch.rand(2, 3, count, generator=generator) * (torch.rand(2, 3, count, generator=generator) > 0.2)
    weight[1, 2, 3:] = 0  # fewer points than clusters
    return point, weight


@pytest.mark.parametrize("count", [5, 40, 200])
def test_points_without_weight_at_the_end_change_nothing(count):
    point, weight = points(count)
    padded = torch.cat((point, torch.zeros(2, 3, 56, 8)), dim=2)
    slots = lloyd(padded, torch.cat((weight, torch.zeros(2, 3, 56)), dim=2), 6, LLOYD_ITERATIONS)
    counts = weight > 0  # a point without weight may be as near to two centres: its slot is a matter of rounding
    assert torch.equal(slots[:, :, :count][counts], lloyd(point, weight, 6, LLOYD_ITERATIONS)[counts])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_graph_gives_what_its_kernels_give():
    for count, seed in ((40, 0), (300, 1), (200, 2), (300, 3)):  # the graph of 256 points is used again
        point, weight = (x.cuda() for x in points(count, seed))
        with torch.inference_mode(seed % 2 == 0):
            slots = replayed(point, weight, 6, LLOYD_ITERATIONS)
            again = k_means(point, weight, 6)
        expected, counts = lloyd(point, weight, 6, LLOYD_ITERATIONS), weight > 0
        for found in (slots, again):  # sums over a cluster have no fixed order
            assert (found == expected)[counts].float().mean() > 0.99

"""Weighted k-means of many small problems at once, deterministic; on a GPU as one launch.

Farthest-first takes one step per cluster, so on a GPU a slot write would wait for hundreds of launches, not for
arithmetic. There the kernels are recorded once for a shape, as a CUDA graph, and replayed.
Shapes: B rows, H heads, E points, P points with padding, S clusters, d dims.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

LLOYD_ITERATIONS = 8
GRAPHED_POINTS = 8192  # beyond, the kernels take longer than their launches
SMALLEST_GRAPH = 256  # points
GRAPHS = 16  # alive at once: each holds its intermediate tensors


def k_means(point_BHEd: Tensor, weight_BHE: Tensor, clusters: int, iterations: int = LLOYD_ITERATIONS) -> Tensor:
    """Assign each point to one of `clusters` clusters: int64 [B, H, E]. Points of weight 0 pull no centre.

    Centres start at the farthest-first traversal: outliers, which attention singles out too, get clusters of their own.
    """
    if point_BHEd.is_cuda and point_BHEd.shape[2] <= GRAPHED_POINTS:
        return replayed(point_BHEd, weight_BHE, clusters, iterations)
    return lloyd(point_BHEd, weight_BHE, clusters, iterations)


def lloyd(point_BHEd: Tensor, weight_BHE: Tensor, clusters: int, iterations: int) -> Tensor:
    """`k_means`, kernel by kernel."""
    centre_BHSd = _farthest_first(point_BHEd, weight_BHE, clusters)
    for _ in range(iterations):
        slot_BHE = nearest_centre(point_BHEd, centre_BHSd)
        total_BHS, (mean_BHSd,) = cluster_means(slot_BHE, weight_BHE, (point_BHEd,), clusters)
        centre_BHSd = torch.where(total_BHS[..., None] > 0, mean_BHSd, centre_BHSd)
    return nearest_centre(point_BHEd, centre_BHSd)


def nearest_centre(point_BHEd: Tensor, centre_BHSd: Tensor) -> Tensor:
    """Index of the nearest centre; ties go to the lower index. Uses |p-c|^2 = |p|^2 - 2 p.c + |c|^2 without |p|^2."""
    score_BHES = 2 * point_BHEd @ centre_BHSd.transpose(-1, -2) - centre_BHSd.square().sum(-1)[..., None, :]
    return score_BHES.argmax(-1)


def cluster_means(
    slot_BHE: Tensor, weight_BHE: Tensor, values_BHEx: Sequence[Tensor], clusters: int
) -> tuple[Tensor, list[Tensor]]:
    """Total weight [B, H, S] and weighted mean [B, H, S, x] of each cluster; an empty cluster has means of 0."""
    batch, heads, _ = slot_BHE.shape
    total_BHS = weight_BHE.new_zeros(batch, heads, clusters).scatter_add_(2, slot_BHE, weight_BHE)
    means = []
    for value_BHEx in values_BHEx:
        width = value_BHEx.shape[-1]
        summed = value_BHEx.new_zeros(batch, heads, clusters, width)
        summed.scatter_add_(2, slot_BHE[..., None].expand(-1, -1, -1, width), value_BHEx * weight_BHE[..., None])
        means.append(summed / total_BHS.clamp(min=torch.finfo(total_BHS.dtype).tiny)[..., None])
    return total_BHS, means


def _farthest_first(point_BHEd: Tensor, weight_BHE: Tensor, clusters: int) -> Tensor:
    """Centres [B, H, S, d]: the first weighted point, then always the point farthest from all centres so far."""
    square_BHE = point_BHEd.square().sum(-1)
    # Points without weight stay below every distance and are never chosen.
    distance_BHE = torch.where(weight_BHE > 0, torch.inf, -torch.inf)
    chosen = []
    for _ in range(clusters):
        index_BH1 = distance_BHE.argmax(-1, keepdim=True)
        chosen.append(index_BH1)
        centre_BHd1 = point_BHEd.gather(2, index_BH1[..., None].expand(-1, -1, -1, point_BHEd.shape[-1])).mT
        away_BHE = torch.add(square_BHE, (point_BHEd @ centre_BHd1).squeeze(-1), alpha=-2)
        distance_BHE = torch.minimum(distance_BHE, away_BHE.add_(square_BHE.gather(2, index_BH1)))
    index_BHS = torch.cat(chosen, dim=-1)
    return point_BHEd.gather(2, index_BHS[..., None].expand(*index_BHS.shape, point_BHEd.shape[-1]))


def replayed(point_BHEd: Tensor, weight_BHE: Tensor, clusters: int, iterations: int) -> Tensor:
    """What `lloyd` gives, from the graph of the next larger power of two of points. Padding has weight 0."""
    batch, heads, points, dim = point_BHEd.shape
    padded = max(SMALLEST_GRAPH, 1 << (points - 1).bit_length())
    graph = _graph((batch, heads, padded, dim), clusters, iterations, point_BHEd.device)
    return graph(point_BHEd, weight_BHE)


class ClusteringGraph:
    """One shape's graph with its input and output buffers (fp32)."""

    def __init__(
        self,
        shape_BHPd: tuple[int, int, int, int],
        clusters: int,
        iterations: int,
        device: torch.device,
    ) -> None:
        # Buffers outlive an inference mode that happens to be on, and are then written outside it, too.
        with torch.inference_mode(False), torch.no_grad(), torch.cuda.device(device):
            self.point_BHPd = torch.zeros(shape_BHPd, device=device)
            self.weight_BHP = torch.zeros(shape_BHPd[:3], device=device)
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):  # libraries set themselves up at the first call, which cannot be recorded
                lloyd(self.point_BHPd, self.weight_BHP, clusters, iterations)
            torch.cuda.current_stream().wait_stream(stream)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                self.slot_BHP = lloyd(self.point_BHPd, self.weight_BHP, clusters, iterations)

    def __call__(self, point_BHEd: Tensor, weight_BHE: Tensor) -> Tensor:
        points = point_BHEd.shape[2]
        self.point_BHPd[:, :, :points].copy_(point_BHEd)
        self.point_BHPd[:, :, points:].zero_()
        self.weight_BHP[:, :, :points].copy_(weight_BHE)
        self.weight_BHP[:, :, points:].zero_()
        self.graph.replay()
        return self.slot_BHP[:, :, :points].clone()


@lru_cache(maxsize=GRAPHS)
def _graph(
    shape_BHPd: tuple[int, int, int, int],
    clusters: int,
    iterations: int,
    device: torch.device,
) -> ClusteringGraph:
    return ClusteringGraph(shape_BHPd, clusters, iterations, device)

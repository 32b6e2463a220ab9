"""A CUDA graph of the clustering: its hundreds of small kernels, recorded once for a shape and replayed as one launch.

Farthest-first takes one step per cluster, so on a GPU a slot write waits for launches, not for arithmetic.
Shapes: B rows, H heads, E points, P points with padding, d dims.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

Clustering = Callable[[Tensor, Tensor, int, int], Tensor]  # points, weights, clusters, iterations -> slots
GRAPHED_POINTS = 8192  # beyond, the kernels take longer than their launches
SMALLEST = 256
SHAPES = 16  # graphs alive at once: each holds its intermediate tensors


def replayed(clustering: Clustering, point_BHEd: Tensor, weight_BHE: Tensor, clusters: int, iterations: int) -> Tensor:
    """What `clustering` gives, from the graph of the next larger power of two of points.

    Padding has weight 0, which `clustering` must ignore.
    """
    batch, heads, points, dim = point_BHEd.shape
    padded = max(SMALLEST, 1 << (points - 1).bit_length())
    graph = _graph(clustering, (batch, heads, padded, dim), clusters, iterations, point_BHEd.device)
    return graph(point_BHEd, weight_BHE)


class ClusteringGraph:
    """One shape's graph with its input and output buffers (fp32)."""

    def __init__(
        self,
        clustering: Clustering,
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
                clustering(self.point_BHPd, self.weight_BHP, clusters, iterations)
            torch.cuda.current_stream().wait_stream(stream)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                self.slot_BHP = clustering(self.point_BHPd, self.weight_BHP, clusters, iterations)

    def __call__(self, point_BHEd: Tensor, weight_BHE: Tensor) -> Tensor:
        points = point_BHEd.shape[2]
        self.point_BHPd[:, :, :points].copy_(point_BHEd)
        self.point_BHPd[:, :, points:].zero_()
        self.weight_BHP[:, :, :points].copy_(weight_BHE)
        self.weight_BHP[:, :, points:].zero_()
        self.graph.replay()
        return self.slot_BHP[:, :, :points].clone()


@lru_cache(maxsize=SHAPES)
def _graph(
    clustering: Clustering,
    shape_BHPd: tuple[int, int, int, int],
    clusters: int,
    iterations: int,
    device: torch.device,
) -> ClusteringGraph:
    return ClusteringGraph(clustering, shape_BHPd, clusters, iterations, device)

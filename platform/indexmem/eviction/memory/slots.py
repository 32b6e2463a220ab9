"""Slot memory: evicted tokens are clustered, and each cluster answers queries as one token of its mass.

    write   cluster evicted keys by d(k, c) = (k - c)^T C (k - c), C = E[q q^T] scale^2: keys that no query tells apart
            share a slot; keep mean key, mean value, mass n and dispersion s = mean d(k, c) of each slot
    read    logit_s = (q + A q) . (k_s + B k_s) scale + log n_s + beta s_s + t(q)
            m = sum_s softmax(logit)_s (v_s + E v_s),   log Z_E = logsumexp(logit)
    fuse    o = (1-w) o_K + w m,   w = sigmoid(log Z_E - log Z_K)

For keys spread around their mean, E[exp(q.k)] ~ exp(q.mean + variance/2): the mass alone underestimates, which beta s
corrects. A, B, E, beta and t are trained and start at zero (beta: 0.2), where this is a count-weighted clustering.
C is a running mean over training data. One state serves all g query heads of a KV head.

Shapes: B rows, H KV heads, g query heads per KV head, Q = H g, E tokens, S slots, n queries, d head_dim.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from indexmem.eviction.memory.base import Evicted, LatentMemory, MemoryShape, MemoryState, Readout, fuse_by_mass
from indexmem.eviction.memory.clustering import cluster_means, k_means
from indexmem.models.geometry import Geometry

METRIC_MOMENTUM = 0.9
INITIAL_DISPERSION_WEIGHT = 0.2


class SlotMemory(LatentMemory):
    metric_Hdd: Tensor
    observed: Tensor

    def __init__(self, shape: MemoryShape, geometry: Geometry) -> None:
        super().__init__(shape, geometry)
        heads, dim = geometry.heads, geometry.head_dim
        self.query_map_Qdd = nn.Parameter(torch.zeros(heads, dim, dim))
        self.key_map_Hdd = nn.Parameter(torch.zeros(self.kv_heads, dim, dim))
        self.value_map_Hdd = nn.Parameter(torch.zeros(self.kv_heads, dim, dim))
        self.offset_Qd = nn.Parameter(torch.zeros(heads, dim))
        self.offset_bias_Q = nn.Parameter(torch.zeros(heads))
        self.dispersion_Q = nn.Parameter(torch.full((heads,), INITIAL_DISPERSION_WEIGHT))
        # Identity until queries have been seen: then plain Euclidean clustering.
        self.register_buffer("metric_Hdd", torch.eye(dim).repeat(self.kv_heads, 1, 1) * self.scaling**2)
        self.register_buffer("observed", torch.zeros(()))

    def observe(self, query_BQnd: Tensor) -> None:
        query = query_BQnd.detach().float().unflatten(1, (self.kv_heads, self.group))
        moment_Hdd = torch.einsum("bhgnd,bhgne->hde", query, query) * self.scaling**2
        moment_Hdd /= query.shape[0] * self.group * query.shape[3]
        momentum = METRIC_MOMENTUM * torch.clamp(self.observed, max=1.0)
        self.metric_Hdd.lerp_(moment_Hdd, 1 - momentum)
        self.observed.fill_(1.0)

    @torch.no_grad()
    def write(self, state: MemoryState | None, evicted: Evicted) -> MemoryState:
        key, value, mass = _present(evicted)
        mass = mass * self.shape.write_strength
        dispersion = torch.zeros_like(mass)
        if state is not None:
            old = state.tensors
            key = torch.cat((old["key"], key), dim=2)
            value = torch.cat((old["value"], value), dim=2)
            mass = torch.cat((old["mass"] * self.shape.decay, mass), dim=2)
            dispersion = torch.cat((old["dispersion"], dispersion), dim=2)
        identity_dd = torch.eye(self.head_dim, device=key.device)
        root_Hdd = torch.linalg.cholesky(self.metric_Hdd + 1e-6 * self._mean_scale() * identity_dd)
        point_BHEd = key @ root_Hdd
        slot_BHE = k_means(point_BHEd, mass, self.shape.dim)
        total, (key_mean, value_mean, point_mean) = cluster_means(
            slot_BHE, mass, (key, value, point_BHEd), self.shape.dim
        )
        spread = point_BHEd - point_mean.gather(2, slot_BHE[..., None].expand_as(point_BHEd))
        inner = (spread.square().sum(-1) + dispersion)[..., None]
        _, (dispersion_mean,) = cluster_means(slot_BHE, mass, (inner,), self.shape.dim)
        return MemoryState(
            {"key": key_mean, "value": value_mean, "mass": total, "dispersion": dispersion_mean.squeeze(-1)}
        )

    def read(self, state: MemoryState, query_BQnd: Tensor, output_BQnd: Tensor, lse_BQn: Tensor) -> Readout:
        slots = state.tensors
        query = query_BQnd.float()
        query = query + query @ self.query_map_Qdd
        key_BHSd = slots["key"] + slots["key"] @ self.key_map_Hdd
        value_BHSd = slots["value"] + slots["value"] @ self.value_map_Hdd
        grouped_BHgnd = query.unflatten(1, (self.kv_heads, self.group))
        logit_BHgnS = torch.einsum("bhgnd,bhsd->bhgns", grouped_BHgnd, key_BHSd) * self.scaling
        weight_Hg11 = self.dispersion_Q.view(self.kv_heads, self.group, 1, 1)
        # An unused slot has mass 0 and answers nothing. A head that lost no token would have only those: what it says
        # is finite here, for the gradient's sake, and counts for nothing below.
        holds_BH1 = slots["mass"].sum(-1, keepdim=True) > 0
        log_mass_BHS = torch.where(holds_BH1, slots["mass"], 1.0).log()
        logit_BHgnS = logit_BHgnS + log_mass_BHS[:, :, None, None] + weight_Hg11 * slots["dispersion"][:, :, None, None]
        offset_BQn = torch.einsum("bqnd,qd->bqn", query_BQnd.float(), self.offset_Qd) + self.offset_bias_Q[:, None]
        lse_BHgn = torch.where(holds_BH1[..., None], logit_BHgnS.logsumexp(-1), -torch.inf)
        memory_lse_BQn = lse_BHgn.flatten(1, 2) + offset_BQn
        memory_BQnd = torch.einsum("bhgns,bhsd->bhgnd", logit_BHgnS.softmax(-1), value_BHSd).flatten(1, 2)
        fused = fuse_by_mass(output_BQnd.float(), lse_BQn, memory_BQnd, memory_lse_BQn)
        return Readout(fused.to(output_BQnd.dtype))

    def _mean_scale(self) -> Tensor:
        return self.metric_Hdd.diagonal(dim1=-2, dim2=-1).mean()


def _present(evicted: Evicted) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values and mass (1 for an evicted token) as fp32, without the tokens that no head evicts.

    When every head evicts as many tokens, each head's own are gathered; else all tokens stay, some with mass 0.
    """
    leaves = evicted.leaves_BHL
    counts = leaves.sum(-1)
    most = int(counts.max()) if counts.numel() else 0
    order = leaves.int().argsort(dim=-1, descending=True, stable=True)[..., : max(most, 1)]
    index = order[..., None].expand(*order.shape, evicted.key_BHLd.shape[-1])
    mass = leaves.gather(-1, order).float()
    return evicted.key_BHLd.float().gather(2, index), evicted.value_BHLd.float().gather(2, index), mass

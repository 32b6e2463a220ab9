"""Scorers with weights that others trained: KVzap, Q-Filters, and stored query statistics for Expected Attention.

The weights are named by a folder or a hub id and loaded when a grid is planned, so that what is missing is said before
anything starts. kvpress' own classes hold them and compute the scores.
Shapes: N layers (all of the model), H KV heads, Q query heads, d head_dim.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from typing import TypeVar

import torch
from kvpress import ExpectedAttentionPress, ExpectedAttentionStatsPress, KVzapPress, QFilterPress
from kvpress.presses.expected_attention_with_stats import ExpectedAttentionStats
from kvpress.presses.kvzap_press import KVzapModel
from kvpress.presses.qfilter_press import QFilters
from torch import Tensor, nn

from indexmem.errors import UserError
from indexmem.eviction.checkpoint import check_finite
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.kvpress_scores import ExpectedAttention, KvpressMethod
from indexmem.fetching import about_to_fetch
from indexmem.files import expanded
from indexmem.models.attention import LayerTap
from indexmem.models.geometry import Geometry

M = TypeVar("M", bound=nn.Module)


class KVzap(KvpressMethod):
    """KVzap (arXiv 2601.07891): a linear map or small MLP on hidden states predicts KVzip's scores."""

    def __init__(self, context: MethodContext, weights: str | None = None) -> None:
        """Raises UserError when the weights are missing or fit another model."""
        model = load_published(KVzapModel.from_pretrained, weights, "nvidia/KVzap-mlp-Qwen3-8B")
        geometry, config = context.geometry, model.config
        held = (config.n_modules, config.input_dim, config.output_dim)
        needed = (all_layers(geometry), geometry.hidden_size, geometry.kv_heads)
        self.checkpoint = hash_of_fitting(weights, model.state_dict(), held, needed)
        press = KVzapPress()
        press.kvzap_model = model.to(context.device).eval().requires_grad_(False)
        super().__init__(press)

    def score(self, tap: LayerTap) -> Tensor:
        return super().score(replace(tap, hidden_BLD=tap.hidden_BLD.float()))  # the press computes as they are


class QFilter(KvpressMethod):
    """Q-Filters (arXiv 2503.02812): minus the key's projection on its head's stored query direction."""

    in_fp32 = True

    def __init__(self, context: MethodContext, weights: str | None = None) -> None:
        """Raises UserError when the weights are missing or fit another model."""
        filters: Tensor = load_published(QFilters.from_pretrained, weights, "nthngdy/Qwen3-8B_qfilt").q_filters.detach()
        geometry = context.geometry
        needed = (all_layers(geometry), geometry.kv_heads, geometry.head_dim)
        self.checkpoint = hash_of_fitting(weights, {"q_filters": filters}, filters.shape, needed)
        press = QFilterPress()
        press.q_filters = filters.to(context.device)
        super().__init__(press)


class ExpectedAttentionStored(ExpectedAttention):
    """Expected Attention (arXiv 2510.00636) with query statistics of a calibration text, not of the context."""

    press: ExpectedAttentionStatsPress

    def __init__(
        self,
        context: MethodContext,
        weights: str | None = None,
        n_future_positions: int = ExpectedAttentionPress.n_future_positions,
        n_sink: int = ExpectedAttentionPress.n_sink,
        use_covariance: bool = True,
        use_vnorm: bool = True,
        epsilon: float = ExpectedAttentionPress.epsilon,
    ) -> None:
        """Raises UserError when the statistics are missing or fit another model."""
        example = "alessiodevoto/exp_att_stats_Qwen_Qwen3-8B_kmfoda_booksum_100_1000_4"
        stats = load_published(ExpectedAttentionStats.from_pretrained, weights, example)
        geometry = context.geometry
        needed = (all_layers(geometry), geometry.heads, geometry.head_dim)
        self.checkpoint = hash_of_fitting(weights, stats.state_dict(), stats.query_mean.shape, needed)
        super().__init__(
            ExpectedAttentionStatsPress(
                n_future_positions=n_future_positions,
                n_sink=n_sink,
                use_covariance=use_covariance,
                use_vnorm=use_vnorm,
                epsilon=epsilon,
            )
        )
        self.press.mu = stats.query_mean.detach().to(context.device).float()
        self.press.cov = stats.query_cov.detach().to(context.device).float()


def load_published(load: Callable[[str], M], weights: str | None, example: str) -> M:
    """What `load` makes of a folder or hub id. Raises UserError that says what is needed and where it comes from."""
    need = f"It needs weights that were trained for this model: weights: FOLDER or a hub id such as {example}"
    if not isinstance(weights, str):
        raise UserError(need)
    path = expanded(weights)
    if weights.startswith((".", "/", "~")) and not path.exists():
        raise UserError(f"{weights} does not exist. {need}")
    try:
        with redirect_stdout(None):  # hub loaders print where they read from
            return load(str(path) if path.exists() else weights)
    except Exception as error:  # files that are not what they should be raise errors of many kinds
        if not path.exists():
            about_to_fetch(weights)
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"weights {weights} could not be loaded (offline?): {reason} {need}") from None


def all_layers(geometry: Geometry) -> int:
    """Published weights number every layer of a model, those with a sliding window too."""
    return geometry.layers + geometry.sliding_layers


def hash_of_fitting(
    weights: str | None, tensors: Mapping[str, Tensor], held: Sequence[int], needed: Sequence[int]
) -> str:
    """Content hash of published tensors: part of every cell's identity.

    Raises UserError for weights whose sizes are not the model's (`needed`), and for NaN or infinity in them.
    """
    if tuple(held) != tuple(needed):
        raise UserError(
            f"weights {weights} have sizes {tuple(held)}; this model needs {tuple(needed)} (layers first). "
            "Use weights that were trained for it."
        )
    check_finite(str(weights), tensors)
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]

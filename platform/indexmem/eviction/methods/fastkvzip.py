"""Fast KVzip: gates that were trained to predict KVzip's scores, without its replay.

Shapes: B batch, H KV heads, L context tokens, i gate dim.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import hf_hub_download
from kvpress.presses.fastkvzip_press import FastKVzipGate
from torch import Tensor, nn

from indexmem.eviction.methods.base import EvictionMethod, MethodContext
from indexmem.eviction.methods.pretrained import all_layers, hash_of_fitting, load_published
from indexmem.eviction.ranking import ABOVE_WINDOW, with_window
from indexmem.eviction.selection import Shared
from indexmem.models.attention import LayerTap

LONG_CONTEXT = 32_000  # tokens from which the window no longer grows with the context


class FastKVzip(EvictionMethod):
    """Fast KVzip (arXiv 2601.17668): a small gate per layer scores each KV head's tokens from hidden states.

    One budget for the heads of all layers; `layerwise` gives every layer the same. The first `n_sink` tokens and a
    recent window come before all others, the newest first: the last `window_ratio` of the context, one at least, or
    `window_size` tokens of a context of 32000 and more.
    """

    def __init__(
        self,
        context: MethodContext,
        weights: str | None = None,
        layerwise: bool = False,
        n_sink: int = 4,
        window_size: int = 4096,
        window_ratio: float = 0.02,
    ) -> None:
        """Raises UserError when the gates are missing or fit another model."""
        gates = load_published(Gates, weights, "Jang-Hyun/Fast-KVzip/qwen3-8b/q4_dim16_sink16.pt")
        geometry = context.geometry
        held = (len(gates), gates.hidden_size, gates.kv_heads)
        needed = (all_layers(geometry), geometry.hidden_size, geometry.kv_heads)
        self.checkpoint = hash_of_fitting(weights, gates.state_dict(), held, needed)
        # In fp32, whatever is published: in bf16 many tokens would have the same score.
        self.gates = gates.to(context.device, torch.float32).eval().requires_grad_(False)
        self.selection = Shared("layer" if layerwise else "model")
        self.n_sink, self.window_size, self.window_ratio = n_sink, window_size, window_ratio

    def score(self, tap: LayerTap) -> Tensor:
        gate = self.gates[int(tap.module.layer_idx)]  # type: ignore[arg-type]
        # The gate takes one sequence at a time.
        scores_BHL = torch.cat([gate(hidden_LD[None].float()) for hidden_LD in tap.hidden_BLD])
        length = scores_BHL.shape[-1]
        window = self.window_size if length >= LONG_CONTEXT else max(1, int(length * self.window_ratio))
        scores_BHL = with_window(scores_BHL, min(window, length))
        scores_BHL[..., : self.n_sink] = ABOVE_WINDOW
        return scores_BHL


class Gates(nn.ModuleList):
    """The gates of a file, one per layer: {"module": [a state dict per layer]}, as the authors publish them."""

    def __init__(self, weights: str) -> None:
        """Raises OSError for a file that cannot be had, KeyError or RuntimeError for one that holds something else."""
        super().__init__()
        for index, state in enumerate(_stored(weights)["module"]):
            width, self.hidden_size = state["q_proj.weight"].shape
            self.kv_heads, _, sinks, dim = state["k_base"].shape
            dtype, group = state["q_proj.weight"].dtype, width // (self.kv_heads * dim)
            gate = FastKVzipGate(index, self.hidden_size, self.kv_heads, group, dtype, dim, sinks)
            gate.load_state_dict(state)
            self.append(gate)


def _stored(weights: str) -> Any:
    path = Path(weights)
    if not path.is_file():
        owner, _, rest = weights.partition("/")
        repository, _, inside = rest.partition("/")
        if not inside:
            raise FileNotFoundError(
                f"weights {weights} name no file; expected a file or OWNER/REPOSITORY/FOLDER/FILE.pt"
            )
        path = Path(hf_hub_download(f"{owner}/{repository}", inside))
    # What the published files hold besides tensors: numbers of numpy.
    reconstruct = (np._core.multiarray._reconstruct, "numpy.core.multiarray._reconstruct")  # type: ignore[attr-defined]
    numbers: list[Any] = [reconstruct, np.ndarray, np.dtype, np.dtypes.Float64DType, np.dtypes.Float32DType]
    with torch.serialization.safe_globals(numbers):
        return torch.load(path, map_location="cpu", weights_only=True)

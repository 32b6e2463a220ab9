"""The scorer of all layers as one ONNX graph: states [N, T, X] in, scores [N, H, T] out, T free.

Shapes: N layers, H KV heads, T tokens, X what is read of a token, w hidden width, G score rows.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from indexmem.errors import UserError
from indexmem.export.portable import ExportedIndexer, LayerIndexer
from indexmem.extras import need

EXAMPLE_TOKENS = 16


class TokenScorer(nn.Module):
    """The token terms of all layers side by side."""

    in_NXw: Tensor
    in_N1w: Tensor
    out_NwG: Tensor
    out_N1G: Tensor

    def __init__(self, indexer: ExportedIndexer) -> None:
        super().__init__()
        self.scored = [indexer.owner(layer) for layer in range(indexer.model["layers"])]
        every = indexer.shape["share_every"]
        owners: list[LayerIndexer] = [indexer.layers[layer // every] for layer in self.scored]
        stacked = {
            name: torch.stack([owner.token.get_parameter(name) for owner in owners])
            for name in ("0.weight", "0.bias", "2.weight", "2.bias")
        }
        self.register_buffer("in_NXw", stacked["0.weight"].mT.contiguous())
        self.register_buffer("in_N1w", stacked["0.bias"][:, None])
        self.register_buffer("out_NwG", stacked["2.weight"].mT.contiguous())
        self.register_buffer("out_N1G", stacked["2.bias"][:, None])
        self.heads = indexer.model["kv_heads"]

    def forward(self, states_NTX: Tensor) -> Tensor:
        hidden_NTw = F.silu(states_NTX[self.scored] @ self.in_NXw + self.in_N1w)
        scores_NGT = (hidden_NTw @ self.out_NwG + self.out_N1G).mT
        return scores_NGT.expand(-1, self.heads, -1)


def write_onnx(indexer: ExportedIndexer, path: Path) -> None:
    """Raises UserError for an indexer with a pair term, and where the package is not installed."""
    if indexer.shape["pair_term"]:
        raise UserError(
            "ONNX can hold the token term alone, and this indexer has a pair term, a maximum over all later queries. "
            "Leave --onnx out: the torch module has both terms."
        )
    need("onnx", "onnx", "onnxscript")
    scorer = TokenScorer(indexer).eval()
    example_NTX = torch.zeros(scorer.in_NXw.shape[0], EXAMPLE_TOKENS, scorer.in_NXw.shape[1])
    program = torch.onnx.export(
        scorer,
        (example_NTX,),
        input_names=["states"],
        output_names=["scores"],
        dynamic_shapes=({1: torch.export.Dim("tokens", min=2)},),
        dynamo=True,
        verbose=False,
    )
    assert program is not None
    program.save(path)

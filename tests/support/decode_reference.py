"""What the kernel of `decode_attention` computes, token by token in fp64. Shapes: see there."""

from __future__ import annotations

import torch
from torch import Tensor


def reference_decode_attention(
    query_RQnd: Tensor,
    keys_Cd: Tensor,
    values_Cd: Tensor,
    begin_N: Tensor,
    kept_N: Tensor,
    gap_R: Tensor,
    opened_1: Tensor,
    scaling: float,
) -> tuple[Tensor, Tensor]:
    """Output [R, Q, n, d] and log-sum-exp [R, Q, n] of `decode_attention`, both fp64."""
    rows, query_heads, new, _ = query_RQnd.shape
    group = query_heads * rows // len(begin_N)
    output_RQnd = torch.zeros(query_RQnd.shape, dtype=torch.float64, device=query_RQnd.device)
    lse_RQn = torch.full(query_RQnd.shape[:3], -torch.inf, dtype=torch.float64, device=query_RQnd.device)
    opened = int(opened_1)
    for row in range(rows):
        for query_head in range(query_heads):
            lane = (row * query_heads + query_head) // group
            begin, kept, gap = int(begin_N[lane]), int(kept_N[lane]), int(gap_R[row])
            for token in range(new):
                last = kept + opened - new + token  # the token itself
                slots = [begin + i for i in range(last + 1) if i < kept or i >= kept + gap]
                if slots:
                    logits = scaling * keys_Cd[slots].double() @ query_RQnd[row, query_head, token].double()
                    output_RQnd[row, query_head, token] = logits.softmax(0) @ values_Cd[slots].double()
                    lse_RQn[row, query_head, token] = logits.logsumexp(0)
    return output_RQnd, lse_RQn

"""Whether a kernel can run. Asked before a module of kernels is imported: those need Triton, and this one does not."""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def interpreted() -> bool:
    """Whether Triton's interpreter runs kernels, on any device; fixed when Triton is imported."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def can_run(*inputs: Tensor) -> bool:
    """Whether kernels can take these: on CUDA (or interpreted), of one dtype of DTYPES, with Triton installed."""
    one_dtype = inputs[0].dtype in DTYPES and all(x.dtype == inputs[0].dtype for x in inputs)
    return one_dtype and (all(x.is_cuda for x in inputs) or interpreted()) and _has_triton()


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None

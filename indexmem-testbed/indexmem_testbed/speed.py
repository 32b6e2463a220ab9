"""Compile the model where that works, and measure what a step takes at each length before a training is planned."""

from __future__ import annotations

import statistics
import time

import torch

from indexmem_testbed.config import PretrainConfig
from indexmem_testbed.model import WeightedLoss

WARM_UP, MEASURED = 2, 3


def prepare(module: WeightedLoss, config: PretrainConfig, world: int) -> dict[int, float]:
    """Seconds of a forward and backward pass over a rank's share of a step, for each length; layers compiled on a GPU.

    Layers are compiled one by one, not the model as a whole: they share their code, so each length is compiled once.
    When the compiler fails, it is named and the layers run as they are.
    """
    layers = module.model.model.layers
    if config.compile and next(module.parameters()).is_cuda:
        for layer in layers:
            layer.compile(dynamic=False)
        try:
            return _measure(module, config, world)
        except Exception as error:  # whatever a compiler may raise: the training itself needs none
            print(f"not compiled: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
            for layer in layers:
                layer._compiled_call_impl = None
    return _measure(module, config, world)


def _measure(module: WeightedLoss, config: PretrainConfig, world: int) -> dict[int, float]:
    lengths = sorted({stage.length for stage in config.stages})
    return {length: _seconds(module, config.step_tokens // length // world, length) for length in lengths}


def _seconds(module: WeightedLoss, rows: int, length: int) -> float:
    device = next(module.parameters()).device
    ids_BL = torch.zeros(rows, length, dtype=torch.long, device=device)
    weights_BL = torch.ones(rows, length, device=device)
    seconds = []
    for _ in range(WARM_UP + MEASURED):
        began = time.perf_counter()
        (module(ids_BL, weights_BL) / weights_BL.sum()).backward()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - began)
        module.zero_grad(set_to_none=True)
    return statistics.median(seconds[WARM_UP:])

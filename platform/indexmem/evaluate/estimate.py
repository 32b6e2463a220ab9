"""What a grid will cost: device hours, from rows that the store has of this model, else from a model of cost; and
whether an actor's memory holds what it works on at once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd
import pyarrow.compute as pc
import torch

from indexmem.config.schema import Experiment
from indexmem.engine.decode import CPU_BATCH_BYTES
from indexmem.evaluate.grid import GridPlan
from indexmem.eviction.footprint import Footprint
from indexmem.eviction.methods.simple import FullCache
from indexmem.models.cost import SPEEDS, DeviceKind, pass_flops, step_flops, time_in_words, weight_bytes
from indexmem.results.schema import OK

GPU_GIB = (24, 48, 80, 141)  # of GPUs that are common in data centres
SCORING = 0.1  # of a prefill, assumed for each method's scoring
COLUMNS = (
    *("benchmark", "benchmark_build", "sample_id", "repeat", "method", "device", "length", "context_tokens"),
    *("new_tokens", "prefill_seconds", "score_seconds", "decode_seconds", "decode_batch", "status"),
)


@dataclass(frozen=True)
class GridWork:
    """What is left to do: numbers of prefills, of (sample, method) pairs and of rows, by benchmark."""

    length: int
    prefills: int
    scored: Mapping[str, int]  # method -> samples that it scores
    answers: Mapping[str, int]  # benchmark -> rows
    limits: Mapping[str, int]  # benchmark -> tokens of an answer at most

    @classmethod
    def of(cls, experiment: Experiment, plan: GridPlan) -> GridWork:
        missing = plan.missing()
        scored = dict.fromkeys(plan.methods, 0)
        for benchmark, missing_SC in missing.items():
            for label in plan.methods:
                columns = [cell.method.label == label for cell in plan.cells_of[benchmark]]
                scored[label] += int(missing_SC[:, columns].any(axis=1).sum())
        return cls(
            experiment.grid.length,
            plan.prefills(missing),
            scored,
            {benchmark: int(missing_SC.sum()) for benchmark, missing_SC in missing.items()},
            {benchmark: max(s.max_new_tokens for s in samples) for benchmark, samples in plan.samples.items()},
        )


def time_sentence(experiment: Experiment, plan: GridPlan) -> str:
    """Device hours of what is left, and what they are taken from."""
    work, grid = GridWork.of(experiment, plan), experiment.grid
    kind: DeviceKind = "GPU" if grid.gpus_per_actor else "CPU"
    devices = grid.gpus_per_actor or grid.cpus_per_actor  # of an actor
    measured = _measured(plan, work, kind)
    if measured is None:
        hours = tuple(seconds / 3600 for seconds in _modelled(experiment, plan, work, kind))
        basis = f"if it gets {SPEEDS[kind].said}; no row of this model is stored to go by"
    else:
        seconds, basis = measured
        hours = (seconds * devices / 3600,)
    wall = ""
    if grid.actors:
        wall = f", {time_in_words([hour / devices / grid.actors for hour in hours])} with {grid.actors} actors"
    return f"{time_in_words(hours, kind)}{wall}, {basis}"


def memory_sentence(experiment: Experiment, plan: GridPlan, *, here: bool) -> str:
    """What an actor holds at once, and whether that fits; `here`: actors run on this machine."""
    grid, size = experiment.grid, experiment.model.element_size
    plain = Footprint.of(FullCache(), plan.geometry, grid.length, size)
    full = plain.bytes_of(grid.length)
    weights = weight_bytes(plan.geometry, size)
    # Evicted contexts of all cells wait for one another; what they hold beside K and V is not counted.
    most = max(
        sum(plain.bytes_of(min(grid.length, plain.granted(c.budget, grid.length, equal_bytes=False))) for c in cells)
        for cells in plan.cells_of.values()
    )
    at_once = weights + grid.unit_samples * (full + most)
    said = (
        f"an actor holds {_gib(at_once)} at once: {_gib(weights)} of weights and, of {grid.unit_samples} samples, "
        f"{_gib(full + most)} each"
    )
    have, what = _room(grid.gpus_per_actor, grid.cpus_per_actor) if here else (None, "")
    if have is None:
        return f"{said}. {_asked_for(at_once, grid.gpus_per_actor)}"
    if at_once <= have:
        return f"{said}, which fits the {_gib(have)} of {what}"
    if weights + 2 * full > have:
        return f"{said}; {what} has {_gib(have)}: too little for the model and one context. Use a smaller grid.length"
    return (
        f"{said}; {what} has {_gib(have)}: an actor will work on fewer samples or cells at once, each time with a "
        "prefill of its own. Lower grid.samples_per_batch, or list fewer budgets"
    )


def _measured(plan: GridPlan, work: GridWork, kind: DeviceKind) -> tuple[float, str] | None:
    """Seconds of an actor, from rows of the same model on such a device, and which rows these are."""
    rows = plan.store.read(plan.store.partitions(f"{plan.model_fingerprint}-"), columns=COLUMNS)
    rows = rows.filter(pc.and_(pc.equal(rows["status"], OK), pc.equal(pc.equal(rows["device"], "cpu"), kind == "CPU")))
    if not rows.num_rows:
        return None
    frame: pd.DataFrame = rows.to_pandas()
    frame = frame[frame["device"] == frame["device"].mode()[0]]
    sample = ["benchmark_build", "sample_id", "repeat"]
    read, scored = frame.drop_duplicates(sample), frame.drop_duplicates([*sample, "method"])
    prefill = read["prefill_seconds"].sum() / read["context_tokens"].sum()  # seconds a token
    by_method = scored.groupby("method")[["score_seconds", "context_tokens"]].sum()
    score = (by_method["score_seconds"] / by_method["context_tokens"]).to_dict()
    others = scored["score_seconds"].sum() / scored["context_tokens"].sum()
    decode = (frame["decode_seconds"] / frame["decode_batch"]).sum() / frame["new_tokens"].sum()
    answered = frame.groupby("benchmark")["new_tokens"].mean().to_dict()
    seconds = work.length * work.prefills * prefill
    seconds += work.length * sum(count * score.get(method, others) for method, count in work.scored.items())
    seconds += decode * sum(count * answered.get(name, work.limits[name]) for name, count in work.answers.items())
    lengths = sorted(set(frame["length"]))
    of_length = "" if lengths == [work.length] else f" at {', '.join(map(str, lengths))} tokens"
    device = "CPUs" if kind == "CPU" else frame["device"].iloc[0]
    return seconds, f"as {len(frame):,} stored rows of this model took on {device}{of_length}"


def _modelled(experiment: Experiment, plan: GridPlan, work: GridWork, kind: DeviceKind) -> tuple[float, float]:
    """Seconds of one device, from fastest to slowest: prefill, scoring, and steps that read weights and caches."""
    geometry, size = plan.geometry, experiment.model.element_size
    batch = experiment.grid.batch_bytes or (CPU_BATCH_BYTES if kind == "CPU" else 16 * CPU_BATCH_BYTES)
    plain = Footprint.of(FullCache(), geometry, work.length, size)
    passes = work.prefills + SCORING * sum(work.scored.values())
    flops, read = passes * pass_flops(geometry, work.length), 0.0
    for benchmark, rows in work.answers.items():
        cells = plan.cells_of[benchmark]
        held = sum(
            plain.bytes_of(min(work.length, plain.granted(cell.budget, work.length, equal_bytes=False)))
            for cell in cells
        ) / len(cells)
        steps = work.limits[benchmark]
        flops += rows * steps * step_flops(geometry)
        read += rows * steps * (held + weight_bytes(geometry, size) * min(1.0, held / batch))
    return SPEEDS[kind].seconds(flops, read)


def _room(gpus: float, cpus: int) -> tuple[float | None, str]:
    """Bytes that an actor has on this machine, and of what."""
    if gpus:
        if not torch.cuda.is_available():
            return None, ""
        return torch.cuda.get_device_properties(0).total_memory * min(1.0, gpus), torch.cuda.get_device_name(0)
    actors = max(1, (os.cpu_count() or 1) // cpus)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return total / actors, f"this machine's memory for each of {actors} actors"


def _asked_for(at_once: float, gpus: float) -> str:
    """What would hold it, where the machine that will is not this one."""
    if not gpus:
        return "Where it will run is not this machine: have so much memory for each actor"
    holding = [size for size in GPU_GIB if size * min(1.0, gpus) * 2**30 >= at_once]
    if holding:
        return f"It fits a GPU of {holding[0]} GiB; on a smaller one an actor works on fewer samples or cells at once"
    return (
        f"No GPU of {GPU_GIB[-1]} GiB or less holds that: an actor will work on fewer samples or cells at once, each "
        "time with a prefill of its own. Lower grid.samples_per_batch, or list fewer budgets"
    )


def _gib(size: float) -> str:
    return f"{size / 2**30:.2g} GiB" if size < 100 * 2**30 else f"{size / 2**30:,.0f} GiB"

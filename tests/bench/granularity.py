"""What coarser eviction costs in score and saves in blocks: every granularity and block size on the same samples.

    python tests/bench/granularity.py sweeps/testbed.yaml model.dtype=bfloat16 --out granularity-testbed.json \
        --processes 14 --minutes 3
    python tests/bench/granularity_tables.py granularity-testbed.json     # the tables of docs/results/granularity.md

One prefill of a sample serves all its cells, and these answer together; neither Ray nor MLflow is needed. Of each cell
it writes the scores of all samples, and which share of a paged cache's blocks of `--page` tokens still holds something:
pages of one head, of all heads of a layer, of the whole model. Samples with a failed row are left out of all cells.
After `--minutes` nothing is begun, and what is there is written.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from indexmem.benchmarks.base import Sample
from indexmem.config.budget import NOTHING_EVICTED, Budget
from indexmem.config.load import load
from indexmem.config.schema import MethodConfig
from indexmem.evaluate.cell import CellEvaluator
from indexmem.evaluate.grid import GridPlan, plan
from indexmem.evaluate.rows import ResultRow
from indexmem.evaluate.work import GridCell, Task
from indexmem.eviction.context import RowCache
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.names import FULL_CACHE
from indexmem.eviction.methods.registry import make_method
from indexmem.files import write_whole
from indexmem.models.backbone import load_backbone
from indexmem.provenance import provenance
from indexmem.results.schema import OK

SCOPES = ("head", "layer", "model")
BATCH_BYTES = 4 * 2**30  # of K and V that a process decodes at once: several share a GPU


@dataclass(frozen=True)
class Setting:
    """A method at one granularity. Its label names the cells."""

    method: str
    granularity: str
    block: int

    @property
    def label(self) -> str:
        return f"{self.method}@{self.granularity}/{self.block}"


def blocks_held(cache: RowCache, tokens: int, page: int) -> dict[str, float]:
    """Share of pages that hold a kept token, by what a page holds: one head, a layer, the model."""
    blocks = -(-tokens // page)
    held_NHU = torch.stack([held_by_heads(kept_HK, blocks, page) for kept_HK in cache.kept_HK])
    held = {"head": held_NHU, "layer": held_NHU.any(1), "model": held_NHU.any(1).any(0)}
    return {scope: float(held[scope].float().mean()) for scope in SCOPES}


def held_by_heads(kept_HK: Tensor, blocks: int, page: int) -> Tensor:
    """Which pages of each head hold a token. What a head repeats beyond its number is one of its own."""
    nothing_HU = torch.zeros(len(kept_HK), blocks, dtype=torch.bool, device=kept_HK.device)
    return nothing_HU.scatter(1, kept_HK // page, True)


@dataclass(frozen=True)
class CountingEvaluator(CellEvaluator):
    """Rows that know which pages are held."""

    page: int = 16

    def _row(self, task: Task, prompt: Any, cell: GridCell, done: Any, answer: Any) -> ResultRow:
        held = blocks_held(done.cache, len(prompt.context_ids), self.page)
        return super()._row(task, prompt, cell, done, answer) | {"blocks_held": held}


def planned(arguments: argparse.Namespace) -> GridPlan:
    experiment = load(arguments.spec, overrides_of(arguments))
    return plan(experiment)


def overrides_of(arguments: argparse.Namespace) -> list[str]:
    methods = ", ".join((FULL_CACHE, *arguments.methods))
    grid = [f"grid.methods=[{methods}]", f"grid.ratios={arguments.ratios}", f"grid.samples={arguments.samples}"]
    return [*grid, f"grid.batch_bytes={BATCH_BYTES}", *arguments.overrides]


def evaluator_of(arguments: argparse.Namespace, grid: GridPlan, settings: list[Setting]) -> CountingEvaluator:
    """Each setting as a method of its own, so that one prefill serves all."""
    experiment = load(arguments.spec, overrides_of(arguments))
    backbone = load_backbone(experiment.model)
    context = MethodContext.of(experiment, backbone.geometry, grid.checkpoint, str(backbone.device))
    methods = {FULL_CACHE: make_method(MethodConfig(name=FULL_CACHE), context)}
    for setting in settings:
        coarse = replace(context, granularity=setting.granularity, block=setting.block)
        methods[setting.label] = make_method(MethodConfig(name=setting.method), coarse)
    return CountingEvaluator(experiment, backbone, methods, provenance(), arguments.page)


def cells_of(grid: GridPlan, settings: list[Setting], ratios: list[float], benchmark: str) -> tuple[GridCell, ...]:
    build = grid.cells_of[benchmark][0].benchmark_build
    wanted = [(FULL_CACHE, NOTHING_EVICTED)]
    wanted += [(setting.label, Budget.of_ratio(ratio)) for setting in settings for ratio in ratios]
    return tuple(
        GridCell(f"{label}@{budget}", MethodConfig(name=label), budget, benchmark, build, "")
        for label, budget in wanted
    )


def units_of(grid: GridPlan, at_once: int) -> Iterator[tuple[str, tuple[Sample, ...]]]:
    """Samples that are evaluated together, all benchmarks in turn."""
    most = max(map(len, grid.samples.values()))
    for start in range(0, most, at_once):
        for benchmark, samples in grid.samples.items():
            if some := samples[start : start + at_once]:
                yield benchmark, some


def work(arguments: argparse.Namespace, number: int, until: float, done: SimpleQueue[Any]) -> None:
    """One process: its share of the units."""
    torch.set_num_threads(max(1, torch.get_num_threads() // arguments.processes))
    grid, settings = planned(arguments), settings_of(arguments)
    evaluator = evaluator_of(arguments, grid, settings)
    for benchmark, samples in list(units_of(grid, arguments.at_once))[number :: arguments.processes]:
        if time.time() > until:
            break
        cells = cells_of(grid, settings, arguments.ratios, benchmark)
        rows, _ = evaluator.evaluate([Task(sample, cells) for sample in samples])
        done.put([slim(row) for row in rows])
    done.put(None)


def slim(row: Mapping[str, Any]) -> dict[str, Any]:
    wanted = ("cell_id", "benchmark", "sample_id", "status", "score", "measured_ratio", "blocks_held", "error_message")
    return {name: row[name] for name in wanted if name in row}


def settings_of(arguments: argparse.Namespace) -> list[Setting]:
    return [Setting(*chosen) for chosen in product(arguments.methods, arguments.granularities, arguments.blocks)]


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """cell -> benchmark -> scores in the order of samples that have a row in every cell, and means of the rest."""
    failed = {(row["benchmark"], row["sample_id"]) for row in rows if row["status"] != OK}
    errors = sorted({row["error_message"] for row in rows if row["status"] != OK})
    found: dict[str, Any] = {}
    for row in sorted(rows, key=lambda row: (row["benchmark"], row["sample_id"])):
        if (row["benchmark"], row["sample_id"]) not in failed:
            cell = found.setdefault(row["cell_id"], {"scores": {}, "kept": [], **{scope: [] for scope in SCOPES}})
            cell["scores"].setdefault(row["benchmark"], []).append(round(row["score"], 4))
            cell["kept"].append(1 - row["measured_ratio"])
            for scope, share in row["blocks_held"].items():
                cell[scope].append(share)
    for cell in found.values():
        cell |= {name: round(sum(cell[name]) / len(cell[name]), 4) for name in ("kept", *SCOPES)}
    return {"samples_left_out": len(failed), "errors": errors, "cells": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", nargs="+", default=["indexer", "keydiff", "snapkv"])
    parser.add_argument("--ratios", nargs="+", type=float, default=[0.5, 0.75, 0.9])
    parser.add_argument("--granularities", nargs="+", choices=SCOPES, default=list(SCOPES))
    parser.add_argument("--blocks", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--page", type=int, default=16, help="tokens of the pages that are counted")
    parser.add_argument("--samples", type=int, default=200, help="of each benchmark")
    parser.add_argument("--at-once", type=int, default=4, help="samples that decode together")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60.0, help="nothing is begun after so many")
    arguments = parser.parse_intermixed_args()
    began = time.time()
    grid = planned(arguments)  # makes the samples, once for all processes
    context = get_context("spawn")
    done = context.SimpleQueue()
    until = began + 60 * arguments.minutes
    workers = [
        context.Process(target=work, args=(arguments, number, until, done), daemon=True)
        for number in range(arguments.processes)
    ]
    for worker in workers:
        worker.start()
    rows, at_work = [], len(workers)
    while at_work:
        some = done.get()
        at_work -= some is None
        rows += some or []
        print(f"{len(rows)} rows, {time.time() - began:.0f} s", flush=True)
    said = {name: str(value) if name == "out" else value for name, value in vars(arguments).items()}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    found = {"arguments": said, "device": device, "commit": provenance()["git_commit"], "benchmarks": [*grid.samples]}
    found |= {"seconds": round(time.time() - began), "rows": len(rows)}
    write_whole(arguments.out, json.dumps(found | summary(rows)))


if __name__ == "__main__":
    main()

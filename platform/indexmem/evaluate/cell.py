"""Samples through all their cells: prefill once, evict many, decode as a batch, score. No Ray here."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from indexmem.benchmarks.base import Benchmark, Sample
from indexmem.benchmarks.registry import make_benchmarks
from indexmem.config.budget import NOTHING_EVICTED
from indexmem.config.schema import Experiment, MethodConfig
from indexmem.engine.answers import Answer
from indexmem.engine.decode import DecodeRow
from indexmem.engine.fidelity import fidelity
from indexmem.engine.options import answers_of
from indexmem.evaluate.compress import CompressedCell, CompressedCells, compress_cells
from indexmem.evaluate.examples import Losses, retention_rows
from indexmem.evaluate.prompts import Prompt
from indexmem.evaluate.rows import ResultRow, ScoreError, base_row, failed_row, scored_options, scored_turns
from indexmem.evaluate.work import GridCell, Task
from indexmem.eviction.methods.base import EvictionMethod, MethodContext
from indexmem.eviction.methods.registry import FULL_CACHE, make_method
from indexmem.models.backbone import Backbone, load_backbone
from indexmem.models.thinking import answer_in, with_thinking
from indexmem.results.schema import OK

REFERENCE = "reference"  # of a full cache that is answered from, and not asked for

Ready = tuple[Task, Prompt, GridCell, CompressedCell]  # what an answer is decoded from


@dataclass(frozen=True)
class CellEvaluator:
    """A warm backbone and the grid's methods."""

    experiment: Experiment
    backbone: Backbone
    methods: Mapping[str, EvictionMethod]  # label -> method
    provenance: Mapping[str, Any]
    losses: Losses = field(default_factory=Losses)  # so far

    @classmethod
    def load(
        cls,
        experiment: Experiment,
        methods: Mapping[str, MethodConfig],
        checkpoint: str | None,
        provenance: Mapping[str, Any],
        backbone: Backbone | None = None,
    ) -> CellEvaluator:
        """`backbone`: the spec's model, if it is loaded already."""
        backbone = backbone or load_backbone(experiment.model)
        tokenizer = with_thinking(backbone.tokenizer, experiment.grid.decoding.thinking)
        backbone = replace(backbone, tokenizer=tokenizer)
        context = MethodContext.of(experiment, backbone.geometry, checkpoint, str(backbone.device))
        built = {label: make_method(config, context) for label, config in methods.items()}
        return cls(experiment, backbone, built, provenance)

    @cached_property
    def benchmarks(self) -> Mapping[str, Benchmark]:
        """name -> benchmark, all of the grid's."""
        return {benchmark.name: benchmark for benchmark in make_benchmarks(self.experiment.grid.benchmarks)}

    def evaluate(self, tasks: Sequence[Task]) -> tuple[list[ResultRow], list[ResultRow]]:
        """Rows of each task's sample in each of its cells and, where asked for, retention rows.

        Tasks that ask about one context share its prefill and its evictions, and answers of all tasks are decoded
        together. A method that cannot handle a sample, and an answer that has no score, give failed rows; the other
        cells go on. With `grid.fidelity` every sample is also answered by its full cache, which the others are held to.
        """
        grid = self.experiment.grid
        if grid.fidelity:
            tasks = [_with_reference(task) for task in tasks]
        prompts = [Prompt.of(task.sample, self.backbone.tokenizer) for task in tasks]
        compressed = self._compressed(tasks, prompts)
        ready = [
            (task, prompt, cell, done.ready[cell.id])
            for task, prompt, done in zip(tasks, prompts, compressed)
            for cell in task.cells
            if cell.id in done.ready
        ]
        decode_rows = [self._decode_row(*item) for item in ready]
        answers = answers_of(self.backbone, decode_rows, grid.batch_bytes, grid.decoding)
        near = self._fidelity(ready, decode_rows, answers) if grid.fidelity else {}
        measured = [
            (item, self._held_to_full(item, self._row(*item, answer), near.get(number, {})))
            for number, (item, answer) in enumerate(zip(ready, answers))
            if item[2].id != REFERENCE
        ]
        rows = [row for _, row in measured]
        for task, done in zip(tasks, compressed):
            for cell in task.cells:
                if cell.id in done.errors and cell.id != REFERENCE:
                    rows.append(self._failed_row(task.sample, cell, done.errors[cell.id]))
        return rows, [example for task in tasks for example in self._examples(task, measured)]

    def _compressed(self, tasks: Sequence[Task], prompts: Sequence[Prompt]) -> list[CompressedCells]:
        """Each task's context compressed for its cells; the same object for all tasks that ask about one context."""
        cells: dict[Any, dict[str, GridCell]] = {}  # of all tasks of a context, by id
        for task in tasks:
            cells.setdefault(task.sample.read_first, {}).update({cell.id: cell for cell in task.cells})
        done: dict[Any, CompressedCells] = {}
        for task, prompt in zip(tasks, prompts):
            context = task.sample.read_first
            if context not in done:
                done[context] = compress_cells(
                    self.backbone,
                    prompt.context_ids,
                    list(cells[context].values()),
                    self.methods,
                    self.experiment.eviction,
                    self.experiment.grid.prefill_chunk,
                    prompt.format,
                )
        return [done[task.sample.read_first] for task in tasks]

    def _fidelity(
        self, ready: Sequence[Ready], rows: Sequence[DecodeRow], answers: Sequence[Answer]
    ) -> dict[int, ResultRow]:
        """Columns of the rows by their number; none for a sample whose full cache gave no answer."""
        of_task: dict[int, list[int]] = {}
        for number, (task, *_) in enumerate(ready):
            of_task.setdefault(id(task), []).append(number)
        near: dict[int, ResultRow] = {}
        for numbers in of_task.values():
            reference = next((i for i in numbers if ready[i][2].method.name == FULL_CACHE), None)
            if reference is None:
                continue
            members = [i for i in numbers if i != reference]
            found = fidelity(
                self.backbone,
                rows[reference],
                [rows[i] for i in members],
                answers[reference].token_ids,
                self.experiment.grid.batch_bytes,
            )
            near |= {i: {"fidelity_kl": one.kl, "fidelity_top1": one.top1} for i, one in zip(members, found)}
            near[reference] = {"fidelity_kl": 0.0, "fidelity_top1": 1.0}
        return near

    def _held_to_full(self, item: Ready, row: ResultRow, near: ResultRow) -> ResultRow:
        """The row with its fidelity, by which some benchmarks score."""
        task, _, cell, _ = item
        if row["status"] != OK or not self.benchmarks[cell.benchmark].by_fidelity:
            return row | near
        if not near:
            return self._failed_row(task.sample, cell, ScoreError("the full cache gave no answer to be held to"))
        return row | near | {"score": near["fidelity_top1"]}

    def _examples(self, task: Task, measured: Sequence[tuple[Ready, ResultRow]]) -> list[ResultRow]:
        """What each cell kept of the task's sample, where that is to be stored."""
        mine = [(item, row) for item, row in measured if item[0] is task]
        if not mine or not self.losses.tells([row for _, row in mine], stored=task.keep_retention):
            return []
        rows, caches = [row for _, row in mine], [done.cache for (*_, done), _ in mine]
        (_, prompt, *_), _ = mine[0]
        return retention_rows(rows, caches, task.sample.question, prompt.context_ids, self.backbone.tokenizer)

    def _decode_row(self, task: Task, prompt: Prompt, cell: GridCell, done: CompressedCell) -> DecodeRow:
        return DecodeRow(
            done.cache,
            len(prompt.context_ids),
            prompt.question_ids,
            task.sample.max_new_tokens,
            done.compression,
            task.sample.stop,
            task.sample.min_new_tokens,
            draw_seed(self.experiment.grid.seed, task.sample),
            prompt.follow_ups,
            prompt.options,
        )

    def _row(self, task: Task, prompt: Prompt, cell: GridCell, done: CompressedCell, answer: Answer) -> ResultRow:
        cache, sample, benchmark = done.cache, task.sample, self.benchmarks[cell.benchmark]
        context_tokens = len(prompt.context_ids)
        full_kv_bytes = self.backbone.geometry.kv_bytes(context_tokens, self.backbone.model.dtype.itemsize)
        lengths = [length for layer in range(len(cache.kept_HK)) for length in cache.lengths(layer)]
        said = (answer.token_ids, *answer.later)
        texts = [str(self.backbone.tokenizer.decode(ids, skip_special_tokens=True)) for ids in said]
        text = texts[0] if not sample.turns else "\n".join(f"[{turn}] {one}" for turn, one in enumerate(texts, start=1))
        try:
            if sample.options:
                scores = scored_options(benchmark, answer.likelihoods, sample)
            else:
                scores = scored_turns(benchmark, self._heard(prompt, said, texts, sample), sample)
        except Exception as error:  # whatever a scorer stumbles over is about this answer alone
            return self._failed_row(sample, cell, error) | {"prediction": text}
        measured = {
            "context_tokens": context_tokens,
            "question_tokens": len(prompt.question_ids),
            "new_tokens": sum(map(len, said)),
            "kept_min": min(lengths),
            "kept_mean": sum(lengths) / len(lengths),
            "kept_max": max(lengths),
            "decode_kept_mean": answer.held_mean,
            "decode_kept_max": answer.held_max,
            "measured_ratio": 1 - (cache.kv_bytes - cache.window_bytes) / (full_kv_bytes - cache.window_bytes),
            "kv_bytes": cache.kv_bytes,
            "indexer_bytes": cache.indexer_bytes,
            "memory_bytes": cache.memory_bytes,
            "full_kv_bytes": full_kv_bytes,
            "prefill_seconds": done.prefill_seconds,
            "score_seconds": done.score_seconds,
            "decode_seconds": answer.seconds,
            "decode_batch": answer.batch,
            "device": _device_name(self.backbone.device),
        }
        outcome = {"prediction": text, "protocol": benchmark.protocol, "truncated": not answer.ended, "status": OK}
        known = base_row(self.experiment, sample, cell, self.backbone.fingerprint, self.provenance)
        return known | outcome | scores | measured

    def _heard(self, prompt: Prompt, said: Sequence[list[int]], texts: Sequence[str], sample: Sample) -> Sequence[str]:
        """What scorers see of each answer: its text without what the model thought before."""
        if self.experiment.grid.decoding.thinking is False:
            return texts
        tokenizer = self.backbone.tokenizer
        ends = [prompt.format.question("", asked.answer_prefix) for asked in sample.asked]
        heard = [answer_in(tokenizer, end, ids) for end, ids in zip(ends, said, strict=True)]
        return [str(tokenizer.decode(ids, skip_special_tokens=True)).lstrip() for ids in heard]

    def _failed_row(self, sample: Sample, cell: GridCell, error: BaseException) -> ResultRow:
        return failed_row(self.experiment, sample, cell, self.backbone.fingerprint, error, self.provenance)


def _with_reference(task: Task) -> Task:
    """The task with its full cache, which another run may have stored already, as one more cell."""
    if not task.cells or any(cell.method.name == FULL_CACHE for cell in task.cells):
        return task
    like = task.cells[0]
    full = GridCell(REFERENCE, MethodConfig(name=FULL_CACHE), NOTHING_EVICTED, like.benchmark, like.benchmark_build, "")
    return replace(task, cells=(full, *task.cells))


def draw_seed(seed: int, sample: Sample) -> int:
    """Seed of a sample's draws: all cells draw the same numbers, which makes their comparison less noisy."""
    digest = hashlib.sha256(f"{seed}/{sample.id}/{sample.repeat}".encode()).digest()
    return int.from_bytes(digest[:8])


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"

"""One sample through all its cells: prefill once, evict many, decode as a batch, score. No Ray here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor

from indexmem.benchmarks.base import Sample
from indexmem.benchmarks.registry import get_benchmark
from indexmem.config.schema import Experiment, MethodConfig
from indexmem.engine.decode import Answer, DecodeRow, decode
from indexmem.evaluate.grid import Cell
from indexmem.evaluate.prepare import Prepared, compression_of, prepare
from indexmem.eviction.methods.base import EvictionMethod, MethodContext
from indexmem.eviction.methods.registry import make_method
from indexmem.models.backbone import Backbone, load_backbone
from indexmem.models.prompt import PromptFormat, encode
from indexmem.results.schema import FAILED, OK, SCHEMA_VERSION

Row = dict[str, Any]


@dataclass(frozen=True)
class CellEvaluator:
    """A warm backbone and the grid's methods."""

    experiment: Experiment
    backbone: Backbone
    methods: Mapping[str, EvictionMethod]  # label -> method
    provenance: Mapping[str, Any]

    @classmethod
    def load(
        cls,
        experiment: Experiment,
        methods: Mapping[str, MethodConfig],
        checkpoint: str | None,
        provenance: Mapping[str, Any],
    ) -> CellEvaluator:
        backbone = load_backbone(experiment.model)
        extra = experiment.eviction.extra_tokens
        context = MethodContext(backbone.geometry, str(backbone.device), checkpoint, extra)
        built = {label: make_method(config, context) for label, config in methods.items()}
        return cls(experiment, backbone, built, provenance)

    def evaluate(self, sample: Sample, cells: Sequence[Cell], keep_retention: bool) -> tuple[list[Row], list[Row]]:
        """Rows of one sample in each cell and, if asked for, its retention rows.

        A method that cannot handle the sample gives failed rows; the other cells go on.
        """
        tokenizer = self.backbone.tokenizer
        prompt = PromptFormat.of(tokenizer)
        context_ids = encode(tokenizer, prompt.context(sample.context))
        question_ids = encode(tokenizer, prompt.question(sample.question, sample.answer_prefix))
        config = self.experiment.eviction
        done = prepare(self.backbone, context_ids, cells, self.methods, config)
        good = [cell for cell in cells if cell.id in done.ready]
        answers = decode(
            self.backbone,
            [
                DecodeRow(
                    done.ready[cell.id].cache,
                    len(context_ids),
                    question_ids,
                    sample.max_new_tokens,
                    compression_of(cell, self.methods[cell.method.label], config),
                )
                for cell in good
            ],
            self.experiment.grid.batch_bytes,
        )
        rows = [
            self._row(sample, cell, done.ready[cell.id], len(context_ids), len(question_ids), answer)
            for cell, answer in zip(good, answers)
        ]
        rows += [
            failed_row(
                self.experiment,
                sample,
                cell,
                self.backbone.fingerprint,
                done.errors[cell.id],
                self.provenance,
            )
            for cell in cells
            if cell.id in done.errors
        ]
        if not keep_retention:
            return rows, []
        tokens = [str(tokenizer.decode([token])) for token in context_ids]
        return rows, [_retention_row(sample, c, tokens, done.ready[c.id].cache.kept_HK) for c in good]

    def _row(
        self, sample: Sample, cell: Cell, done: Prepared, context_tokens: int, question_tokens: int, answer: Answer
    ) -> Row:
        cache = done.cache
        full_kv_bytes = self.backbone.geometry.kv_bytes(context_tokens, self.backbone.model.dtype.itemsize)
        lengths = [layer.shape[1] for layer in cache.kept_HK]
        mean = sum(lengths) / len(lengths)
        text = str(self.backbone.tokenizer.decode(answer.token_ids, skip_special_tokens=True))
        return _base_row(self.experiment, sample, cell, self.backbone.fingerprint, self.provenance) | {
            "prediction": text,
            "score": get_benchmark(cell.benchmark).score(text, sample.references),
            "status": OK,
            "context_tokens": context_tokens,
            "question_tokens": question_tokens,
            "new_tokens": len(answer.token_ids),
            "kept_min": min(lengths),
            "kept_mean": mean,
            "kept_max": max(lengths),
            "measured_ratio": 1 - cache.kv_bytes / full_kv_bytes,
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


def failed_row(
    experiment: Experiment,
    sample: Sample,
    cell: Cell,
    model_fingerprint: str,
    error: BaseException,
    provenance: Mapping[str, Any],
) -> Row:
    """The row of a sample that could not be evaluated: it says why, and a restart tries it again."""
    return _base_row(experiment, sample, cell, model_fingerprint, provenance) | {
        "status": FAILED,
        "error_class": type(error).__name__,
        "error_message": str(error)[:2000],
    }


def _base_row(
    experiment: Experiment, sample: Sample, cell: Cell, model_fingerprint: str, provenance: Mapping[str, Any]
) -> Row:
    return {
        "schema_version": SCHEMA_VERSION,
        "cell_id": cell.id,
        "sample_id": sample.id,
        "repeat": 0,
        "model": experiment.model.id,
        "model_fingerprint": model_fingerprint,
        "method": cell.method.label,
        "method_params": json.dumps(cell.method.params, sort_keys=True),
        "checkpoint": cell.checkpoint,
        "ratio": cell.ratio,
        "benchmark": cell.benchmark,
        "benchmark_build": cell.benchmark_build,
        "length": experiment.grid.length,
        "references": list(sample.references),
        "git_commit": provenance["git_commit"],
        "versions": json.dumps(provenance["versions"], sort_keys=True),
        "host": provenance["host"],
        "created_at": datetime.now(UTC),
    } | dict.fromkeys(_MEASURED)


# Null until measured, so that a failed row has every column.
_MEASURED = (
    *("prediction", "score", "error_class", "error_message", "context_tokens", "question_tokens", "new_tokens"),
    *("kept_min", "kept_mean", "kept_max", "measured_ratio", "kv_bytes", "indexer_bytes", "memory_bytes"),
    *("full_kv_bytes", "prefill_seconds", "score_seconds", "decode_seconds", "decode_batch", "device"),
)


def _retention_row(sample: Sample, cell: Cell, tokens: list[str], kept_HK: Sequence[Tensor]) -> Row:
    counts_L = torch.zeros(len(tokens))
    for layer in kept_HK:
        counts_L += torch.bincount(layer.flatten().cpu(), minlength=len(tokens))
    heads = sum(layer.shape[0] for layer in kept_HK)
    return {
        "schema_version": SCHEMA_VERSION,
        "cell_id": cell.id,
        "sample_id": sample.id,
        "repeat": 0,
        "question": sample.question,
        "tokens": tokens,
        "retention": (counts_L / heads).tolist(),
    }


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"

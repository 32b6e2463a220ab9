"""The model card, filled from what training and evaluation wrote, and the folder that the package carries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from indexmem.errors import UserError
from indexmem.files import copy_of
from indexmem.models.assets import WEIGHTS
from indexmem_testbed.model import STARTED_FROM, TRAINED, read_trained

MAX_MIB = 16
COMMANDS = (
    "python jobs/pretrain_testbed.py sweeps/testbed.yaml",
    "python jobs/pretrain_testbed.py sweeps/testbed-longer.yaml",
)


def render(trained: Mapping[str, Any], model: Mapping[str, Any], size: int, scores: Mapping[str, Any] | None) -> str:
    """The card. trained: TRAINED; model: the model's config.json; size: bytes of the weights in bfloat16.

    scores: {'samples': n, 'seed': s, 'scores': {length: {task: mean in [0, 1]}}}
    """
    parts = _parts(trained)
    environment = Environment(
        loader=PackageLoader("indexmem_testbed", ""),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("card.md.j2").render(
        parts=parts,
        configs=[part["pretrain"] for part in parts],
        tokens_M=sum(part["step"] * part["pretrain"]["step_tokens"] for part in parts) / 1e6,
        model=model,
        size=size,
        scores=scores,
        tasks=list(dict.fromkeys(task for row in scores["scores"].values() for task in row)) if scores else [],
        commands=COMMANDS[: len(parts)],
    )


def _parts(trained: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The trainings that made a model, one after another, the first one first."""
    earlier = trained.get(STARTED_FROM)
    return [*([] if earlier is None else _parts(earlier)), trained]


def ship(source: Path, target: Path, scores: Path | None) -> Path:
    """Copy a trained model folder to `target` with a card of its own, atomically; returns `target`.

    Raises UserError when `source` holds no trained model, one that is too large, or `scores` cannot be read.
    """
    if not (source / WEIGHTS).is_file() or not (source / TRAINED).is_file():
        raise UserError(f"{source} holds no pre-trained model. Expected {WEIGHTS} and {TRAINED} in it; train first.")
    size = (source / WEIGHTS).stat().st_size
    if size > MAX_MIB * 2**20:
        raise UserError(f"{source / WEIGHTS} has {size / 2**20:.1f} MiB; the package carries {MAX_MIB} MiB at most.")
    model = json.loads((source / "config.json").read_text(encoding="utf-8"))
    card = render(read_trained(source), model, size, None if scores is None else _read_scores(scores))
    with copy_of(source, target) as draft:
        (draft / "README.md").write_text(card, encoding="utf-8")
    return target


def _read_scores(path: Path) -> dict[str, Any]:
    try:
        scores: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"Cannot read scores from {path}: {error}. Expected what testbed_scores.py wrote.") from None
    return scores

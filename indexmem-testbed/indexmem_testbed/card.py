"""The model card, filled from what training and evaluation wrote, and the folder that the package carries."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from indexmem.errors import UserError
from indexmem.files import copy_of
from indexmem.models.assets import WEIGHTS
from indexmem_testbed.model import STARTED_FROM, TRAINED, read_trained

MAX_MIB = 16
THEN = "; then "  # between trainings
COMMANDS = (
    "python jobs/pretrain_testbed.py sweeps/testbed.yaml",
    "python jobs/pretrain_testbed.py sweeps/testbed-longer.yaml",
)

CARD = """\
---
library_name: transformers
pipeline_tag: text-generation
license: apache-2.0
---

# testbed

A Llama of {parameters} parameters ({mib:.1f} MiB in bfloat16) that does nothing but look things up in its context: a
small, fast stand-in for a language model in comparisons of KV-cache eviction methods. It is not a language model.

| | |
|---|---|
| layers, hidden size, heads, KV heads | {layers}, {hidden}, {heads}, {kv_heads} |
| positions | trained with up to {longest} tokens, {max_positions} at most |
| training | {steps}; {tokens:.0f} M tokens in all |
| lengths | {stages} |
| peak learning rate | {peak_lr} |
| loss at the end | {loss} |

## Data

Generated while training, by `indexmem_testbed`: {mixture}; beside them sequences without meaning that repeat random
spans or entries of a dictionary. Haystacks and plain text: {texts}.

What training and evaluation share: the wording of the RULER tasks, its noise sentence, and the word lists of
`wonderwords` from which keys, list entries and fillers are drawn. What they do not share: the haystack
`{heldout}`, which no training text or tokenizer has seen, and every drawn pair, number, UUID, name and person, which
come from other seeds.

## Scores

{scores}
## Make it again

{commands}

Texts, by content: {fingerprints}.
"""


def render(trained: Mapping[str, Any], model: Mapping[str, Any], size: int, scores: Mapping[str, Any] | None) -> str:
    """The card. trained: TRAINED; model: the model's config.json; size: bytes of the weights; scores: see `_table`."""
    parts = _parts(trained)
    configs = [part["pretrain"] for part in parts]
    config = configs[-1]
    return CARD.format(
        parameters=f"{size / 2 / 1e6:.1f} M",
        mib=size / 2**20,
        layers=model["num_hidden_layers"],
        hidden=model["hidden_size"],
        heads=model["num_attention_heads"],
        kv_heads=model["num_key_value_heads"],
        max_positions=model["max_position_embeddings"],
        longest=max(stage["length"] for config in configs for stage in config["stages"]),
        steps=THEN.join(
            f"{part['step']} steps of {part['pretrain']['step_tokens']} tokens, seed {part['pretrain']['seed']}"
            for part in parts
        ),
        tokens=sum(part["step"] * part["pretrain"]["step_tokens"] for part in parts) / 1e6,
        stages=THEN.join(map(_stages, configs)),
        peak_lr=THEN.join(f"{config['peak_lr']:g}" for config in configs),
        loss=THEN.join(f"{part['metrics']['loss']:.3f}" for part in parts),
        mixture=THEN.join(map(_mixture, configs)),
        texts=", ".join(f"`{name}`" for name in config["texts"]),
        heldout=config["heldout"],
        scores=_table(scores) if scores else "Not evaluated.\n",
        commands="\n".join(f"    {command}" for command in COMMANDS[: len(parts)]),
        fingerprints=", ".join(f"{name} {value}" for name, value in trained["texts"].items()),
    )


def _parts(trained: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The trainings that made a model, one after another, the first one first."""
    earlier = trained.get(STARTED_FROM)
    return [*([] if earlier is None else _parts(earlier)), trained]


def _stages(config: Mapping[str, Any]) -> str:
    return ", ".join(f"{stage['length']} ({stage['share']:.0%})" for stage in config["stages"])


def _mixture(config: Mapping[str, Any]) -> str:
    total = sum(config["mixture"].values())
    return ", ".join(f"{name} {weight / total:.0%}" for name, weight in config["mixture"].items())


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


def _table(scores: Mapping[str, Any]) -> str:
    """Markdown. scores: {'samples': n, 'seed': s, 'scores': {length: {task: mean in [0, 1]}}}."""
    by_length = scores["scores"]
    tasks = list(dict.fromkeys(task for row in by_length.values() for task in row))
    lines = [
        f"Full cache, in %, {scores['samples']} samples of each task and length, seed {scores['seed']}:",
        "",
        f"| task | {' | '.join(by_length)} |",
        f"|---|{'---|' * len(by_length)}",
    ]
    for task in tasks:
        cells = [f"{100 * row[task]:.1f}" if task in row else "" for row in by_length.values()]
        lines.append(f"| {task} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"

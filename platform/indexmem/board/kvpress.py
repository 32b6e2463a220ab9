"""What kvpress' evaluation writes, a folder with config.yaml, metrics.json and predictions.csv, as rows of the board.

metrics.json holds means alone: for RULER by task, for LoogLE by metric, for others one number or several. So there is a
row for each mean, without an interval. predictions.csv tells how many samples a mean is of. Where a
score is above 1, the file's scores are per cent.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from indexmem.board.files import as_table
from indexmem.board.format import BOARD_VERSION, as_board_row, problems
from indexmem.errors import UserError
from indexmem.results.schema import FULL_LABEL

CONFIG, METRICS, PREDICTIONS = "config.yaml", "metrics.json", "predictions.csv"
NO_PRESS = "no_press"
OF_A_METHOD = ("press_init_command", "threshold", "key_channel_compression_ratio")
OF_THE_PROTOCOL = ("fp8", "needle_depth", "compression_interval", "target_size", "hidden_states_buffer_size")


def read_kvpress(folder: Path, who: str) -> pa.Table:
    """The means of a result folder. Raises UserError that names the file and what was expected in it."""
    config = _mapping(folder / CONFIG, yaml.safe_load)
    metrics = _mapping(folder / METRICS, json.loads)
    sizes = _sizes(folder / PREDICTIONS)
    try:
        common = _common(config, who)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder / CONFIG}: not as kvpress' evaluation writes it ({error!r}).") from None
    rows = []
    for task, score in _scores(metrics, ""):
        benchmark = f"{config['dataset']}/{task}" if task else str(config["dataset"])
        share = score / 100 if _percent(metrics) else score
        named = {"benchmark": benchmark, "score": share, "samples": sizes.get(task) or sizes.get("") or None}
        rows.append(as_board_row(common | named))
        if found := list(problems({name: value for name, value in rows[-1].items() if value is not None})):
            raise UserError(f"{folder / METRICS}, {task or 'the score'}: {found[0]}.")
    if not rows:
        raise UserError(f"{folder / METRICS} holds no scores.")
    return as_table(rows)


def _common(config: Mapping[str, Any], who: str) -> dict[str, Any]:
    """What all rows of a folder say."""
    press, ratio = str(config["press_name"]), float(config["compression_ratio"])
    aware = config.get("query_aware", config.get("compress_questions", False))
    limit = config.get("max_new_tokens")
    kwargs = config.get("model_kwargs") or {}
    dtype = kwargs.get("dtype", kwargs.get("torch_dtype"))
    others = {name: config[name] for name in OF_THE_PROTOCOL if config.get(name)}
    data = str(config.get("data_dir") or "")
    build = {name: config.get(name) for name in ("dataset", "data_dir", "fraction", "max_context_length", "seed")}
    variant = {name: config[name] for name in OF_A_METHOD if config.get(name) is not None}
    length = config.get("max_context_length") or (int(data) if data.isdecimal() else None)
    return {
        "board_version": BOARD_VERSION,
        "model": str(config["model"]),
        "method": FULL_LABEL if press == NO_PRESS else press,
        "code": None if press == NO_PRESS else json.dumps(variant, sort_keys=True, default=str)[:500],
        "budget": "0%" if press == NO_PRESS else f"{ratio:g}",
        "build": json.dumps(build, sort_keys=True, default=str),
        "prompts": "kvpress",
        "engine": f"kvpress, version not recorded, rows of {who}",  # so two people's are never taken for the same
        "length": length,
        "sinks": 0,  # kvpress has no rule for all presses: each decides by itself
        "question": "before" if aware else "after",
        "decoding": "greedy" if limit is None else f"greedy max_new_tokens={limit}",
        "dtype": None if dtype is None else str(dtype),
        "seed": config.get("seed"),
        "settings": json.dumps(others, sort_keys=True, default=str)[1:-1],
        "who": who,
        "device": None if config.get("device") is None else str(config["device"]),
    }


def _scores(metrics: Mapping[str, Any], above: str) -> Iterator[tuple[str, float]]:
    """(task, score) for each number: {"vt": {"string_match": 93.1}} gives vt, and a second metric vt/name."""
    numbers = {name: value for name, value in metrics.items() if _is_number(value)}
    for number, (name, value) in enumerate(numbers.items()):
        yield above if above and number == 0 else f"{above}/{name}".strip("/"), float(value)
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            yield from _scores(value, f"{above}/{name}".strip("/"))


def _percent(metrics: Mapping[str, Any]) -> bool:
    return any(score > 1 for _, score in _scores(metrics, ""))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _mapping(path: Path, parse: Any) -> Mapping[str, Any]:
    try:
        found = parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise UserError(f"{path} cannot be read: {str(error)[:300]}") from None
    if _is_number(found):
        return {"score": found}
    if not isinstance(found, dict):
        raise UserError(f"{path}: expected a mapping as kvpress' evaluation writes it; got {found!r:.80}.")
    return found


def _sizes(path: Path) -> Counter[str]:
    """Samples by task, and all of them under ''; empty without a file."""
    sizes: Counter[str] = Counter()
    if path.is_file():
        csv.field_size_limit(2**31 - 1)  # an answer may be long
        try:
            with path.open(encoding="utf-8", newline="") as stream:
                for row in csv.DictReader(stream):
                    sizes[""] += 1
                    sizes[row.get("task") or ""] += bool(row.get("task"))
        except (OSError, ValueError, csv.Error) as error:
            raise UserError(f"{path} cannot be read: {error}") from None
    return sizes

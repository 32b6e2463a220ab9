"""What computed a suite's night: settings, code, data, libraries, device. What differs may be why scores do."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import yaml

from indexmem.config.nightly import MODULES
from indexmem.config.spec import flatten
from indexmem.nightly.verdict import Changed

FACT_COLUMNS = ("benchmark", "benchmark_build", "model_fingerprint", "git_commit", "code", "versions", "device")
NAMED = {"git_commit": "commit", "code": "engine", "model_fingerprint": "model weights", "device": "device"}
PLACES = ("run.", "tracking.")  # settings that compute nothing


@dataclass(frozen=True)
class Facts:
    """By name."""

    settings: Mapping[str, str]  # that the frozen spec names; all others are at their defaults
    computed: Mapping[str, str]  # what rows say of themselves; names of trainings, which hash texts and settings

    @classmethod
    def of(cls, suite: Path, rows: pa.Table) -> Facts:
        """`suite`: its run root; `rows` have FACT_COLUMNS."""
        spec = suite / "spec.yaml"
        said = flatten(yaml.safe_load(spec.read_text(encoding="utf-8"))) if spec.is_file() else {}
        found: dict[str, set[str]] = {}
        for kind in rows.select(FACT_COLUMNS).group_by(FACT_COLUMNS).aggregate([]).to_pylist():
            values = {shown: kind[name] for name, shown in NAMED.items()} | json.loads(kind["versions"] or "{}")
            for name, value in (values | {f"samples of {kind['benchmark']}": kind["benchmark_build"]}).items():
                found.setdefault(name, set()).add(value or "unknown")
        trainings = {path.name for path in (suite / MODULES).glob("*")}
        found |= {"trainings": trainings} if trainings else {}
        return cls(
            {name: json.dumps(value) for name, value in said.items() if not name.startswith(PLACES)},
            {name: ", ".join(sorted(values)) for name, values in found.items()},
        )


def changes(suite: str, before: Facts, now: Facts) -> list[Changed]:
    """What differs between two nights. What one of them computed nothing of is no change of that."""
    settings = sorted({*before.settings, *now.settings}) if before.settings else []
    pairs = [(name, before.settings.get(name, "default"), now.settings.get(name, "default")) for name in settings]
    both = sorted(before.computed.keys() & now.computed.keys())
    pairs += [(name, before.computed[name], now.computed[name]) for name in both]
    return [Changed(suite=suite, what=name, before=old, now=new) for name, old, new in pairs if old != new]

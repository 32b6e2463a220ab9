"""The best trial as a spec that other commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from indexmem.config.load import by_section
from indexmem.config.schema import Experiment
from indexmem.config.spec import as_said, run_root
from indexmem.files import write_whole
from indexmem.results.sweeps import Sweep

LONGEST_NAME = 64  # of a spec


def write_best_spec(experiment: Experiment, sweep: Sweep, page: Path) -> Path | None:
    """Write <name>-best.yaml beside the sweep's page: the best trial's settings on top of the spec that was swept,
    which is written beside the trials. None where no trial is complete.
    """
    if sweep.best is None:
        return None
    # Without its sweep: what is evaluated or trained with it is one point.
    swept = {name: section for name, section in as_said(experiment).items() if name != "sweep"}
    base = run_root(experiment) / "sweeps" / sweep.id / "spec.yaml"
    write_whole(base, f"# What the sweep {sweep.name} varies, resolved.\n{_yaml(swept)}")
    ending = "-best"
    name = sweep.name[: LONGEST_NAME - len(ending)] + ending
    best = {"extends": f"../sweeps/{sweep.id}/{base.name}", "name": name} | by_section(sweep.best.params)
    path = page.with_name(f"{sweep.name}{ending}{page.stem.removeprefix(f'{sweep.name}-sweep')}.yaml")
    about = " ".join(sweep.describe(sweep.best).split())  # a setting may have lines
    write_whole(path, f"# {about}\n{_yaml(best)}")
    return path


def _yaml(content: dict[str, Any]) -> str:
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)

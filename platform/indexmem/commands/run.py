"""`indexmem run`: all that a spec describes. Train the modules that its grid needs, evaluate, report; or sweep."""

from __future__ import annotations

from indexmem.commands.distill import distill_spec
from indexmem.commands.evaluate import evaluate_spec
from indexmem.commands.sweep import sweep_spec
from indexmem.config.schema import Experiment
from indexmem.distill.checks import check_distill
from indexmem.evaluate.grid import plan
from indexmem.evaluate.settings import trains_first
from indexmem.progress.view import say


def run_spec(experiment: Experiment, *, dry_run: bool = False, address: str | None = None) -> int:
    """Do all that the spec describes, or what is left of it. The exit code is that of the last step.

    Both steps are checked before the first begins: a grid that cannot be evaluated is not trained for.
    """
    if experiment.sweep.axes:
        return sweep_spec(experiment, dry_run=dry_run, address=address)
    if trains_first(experiment):
        if not dry_run:
            check_distill(experiment)
            plan(experiment, require_checkpoint=False)
        code = distill_spec(experiment, dry_run=dry_run, address=address)
        if code:
            return code
    else:
        say(f"run {experiment.name}: nothing to train")
    return evaluate_spec(experiment, dry_run=dry_run, address=address)

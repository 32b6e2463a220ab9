"""The trained modules that a grid's methods use: which they are, whether its spec trains them, where they lie."""

from __future__ import annotations

from indexmem.config.schema import Experiment
from indexmem.config.spec import run_root
from indexmem.distill.runs import DistillRun, runs_folder
from indexmem.errors import UserError
from indexmem.evaluate.checks import check_trained_shape
from indexmem.evaluate.settings import check_made, learned_methods, trains_first
from indexmem.models.assets import modules_folder


def check_modules(experiment: Experiment, *, require: bool) -> None:
    """Raises UserError for a method whose module the spec's training does not make and, with `require`, at once where
    nothing is trained yet. Neither model nor texts are looked at.
    """
    check_made(experiment)
    if require and trains_first(experiment) and not runs_folder(experiment).is_dir():
        raise _untrained(experiment)


def modules_for(experiment: Experiment, *, require: bool) -> str | None:
    """Folder of the grid's modules: the one that the spec names, else the one that its own distillation left.

    None where no method needs any, or they are not trained yet, which with `require` is a UserError.
    """
    if not learned_methods(experiment):
        return None
    if experiment.indexer.checkpoint:
        folder = str(modules_folder(experiment.indexer.checkpoint))
        check_trained_shape(experiment.indexer, folder)
        return folder
    run = DistillRun.of(experiment)
    if run.finished:
        return str(run.final)
    if require:
        raise _untrained(experiment)
    return None


def _untrained(experiment: Experiment) -> UserError:
    return UserError(
        f"The grid compares {', '.join(learned_methods(experiment))}, but this spec's modules are not trained yet in "
        f"{run_root(experiment)}. Use `indexmem run SPEC`, which trains what is missing and then evaluates; or "
        "`indexmem distill SPEC` first; or name trained ones: indexer.checkpoint=FOLDER."
    )

"""The trained modules that a grid's methods use: which they are, whether its spec trains them, where they lie."""

from __future__ import annotations

from indexmem.config.schema import Experiment
from indexmem.config.spec import run_root
from indexmem.distill.runs import DistillRun, runs_folder
from indexmem.errors import UserError
from indexmem.evaluate.checks import check_trained_shape
from indexmem.eviction.memory.stack import module_name
from indexmem.eviction.methods.registry import needs_training, trained_modules
from indexmem.models.assets import modules_folder


def trains_first(experiment: Experiment) -> bool:
    """Whether the grid compares methods whose modules the spec itself trains."""
    return bool(_learned(experiment)) and experiment.indexer.checkpoint is None


def check_modules(experiment: Experiment, *, require: bool) -> None:
    """Raises UserError for a method whose module the spec's training does not make and, with `require`, at once where
    nothing is trained yet. Neither model nor texts are looked at.
    """
    if not trains_first(experiment):
        return
    config = experiment.distill
    made = {str(name) for name in config.modules if name != "memory"}
    made |= {module_name(base) for base in experiment.memory.bases} if "memory" in config.modules else set()
    for method in experiment.grid.methods:
        if lacking := sorted(trained_modules(method) - made):
            raise UserError(
                f"Method '{method.label}' needs the module {lacking[0]}, and this spec trains "
                f"{', '.join(sorted(made))}. Add it (distill.modules lists indexer, memory and locret; memory.bases is "
                "for whose evictions memories are trained), or name trained ones: indexer.checkpoint=FOLDER."
            )
    if require and not runs_folder(experiment).is_dir():
        raise _untrained(experiment)


def modules_for(experiment: Experiment, *, require: bool) -> str | None:
    """Folder of the grid's modules: the one that the spec names, else the one that its own distillation left.

    None where no method needs any, or they are not trained yet, which with `require` is a UserError.
    """
    if not _learned(experiment):
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


def _learned(experiment: Experiment) -> list[str]:
    return [method.label for method in experiment.grid.methods if needs_training(method)]


def _untrained(experiment: Experiment) -> UserError:
    return UserError(
        f"The grid compares {', '.join(_learned(experiment))}, but this spec's modules are not trained yet in "
        f"{run_root(experiment)}. Use `indexmem run SPEC`, which trains what is missing and then evaluates; or "
        "`indexmem distill SPEC` first; or name trained ones: indexer.checkpoint=FOLDER."
    )

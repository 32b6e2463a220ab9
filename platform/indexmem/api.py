"""The front door for scripts and notebooks: one call each to train, to evaluate and to compare.

    import indexmem

    grid = dict(methods=["full", "indexer"], benchmarks=["vt"], ratios=[0.9])
    result = indexmem.run_grid("testbed", modules="testbed-modules", **grid)
    print(result.table())

Both `train_modules` and `run_grid` make a spec (`config.schema.Experiment`) of their arguments and go the way of the
commands: the same checks, names, store and statistics. What is stored already is not computed again. Without
`on_ray`, everything happens in this process.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from tqdm.auto import tqdm

from indexmem.config.load import load, with_settings
from indexmem.config.schema import MEAN, Experiment
from indexmem.config.spec import run_root
from indexmem.errors import UserError
from indexmem.files import check_writable

if TYPE_CHECKING:
    import pandas as pd

    from indexmem.evaluate.grid import GridPlan

SpecEntry = str | Mapping[str, Any]  # 'snapkv', or {'name': 'snapkv', 'params': {'window_size': 32}}


@dataclass(frozen=True)
class TrainedModules:
    """What a training wrote."""

    folder: Path  # for `modules=` of `run_grid`, `indexer.checkpoint` of a spec, and presses
    history: pd.DataFrame  # a row for each step: lr, losses, gradient norms, tokens per second


@dataclass(frozen=True, repr=False)
class GridResult:
    """The stored rows of a grid, and what is said of them."""

    experiment: Experiment
    plan: GridPlan
    rows: pa.Table  # one for each sample and cell: results/schema.py

    @property
    def failed(self) -> int:
        """Rows that failed; the column `error_message` says why. The same call tries them again."""
        return sum(status != "ok" for status in self.rows["status"].to_pylist())

    def table(self) -> str:
        """Methods by budget, as the commands print it: means over benchmarks in %, with intervals and who leads."""
        from indexmem.results.tables import comparison_table

        return comparison_table(self.rows)

    def frame(self) -> pd.DataFrame:
        """Every cell's mean with its 95% interval, in [0, 1], `n` and standing; `benchmark` is 'mean' for all."""
        from indexmem.results.summary import by_model, summarise
        from indexmem.results.tables import score_frame

        return score_frame({model: summarise(rows) for model, rows in by_model(self.rows).items()})

    def report(self, *, images: bool = False) -> Path:
        """Write the report, one HTML file that opens offline, its numbers as CSV and LaTeX, and perhaps its charts."""
        from indexmem.commands.report import write_grid_report

        return write_grid_report(self.experiment, self.plan, self.rows, images=images)

    def __repr__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        """For notebooks, where columns must stay aligned."""
        return f"<pre>{html.escape(self.table())}</pre>"


def train_modules(
    model: str | Path | None = None,
    *,
    texts: Sequence[SpecEntry] | None = None,
    steps: int | None = None,
    modules: Sequence[str] | None = None,
    name: str | None = None,
    spec: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    on_ray: bool = False,
    progress: bool = True,
) -> TrainedModules:
    """Distil modules ('indexer', 'memory', 'locret') for a frozen model; a training that is finished is found again.

    `model` is a built-in name, a folder or a hub id, `texts` as in `distill.texts`. `settings` has any other setting
    by its dotted name, for example {'distill.length': 1024}; it and the arguments go over what the file `spec` says.
    `steps` shortens or stretches all stages of the learning rate. A training that was interrupted goes on. Raises
    UserError for what cannot be trained, before it starts.
    """
    from indexmem.distill.checks import check_distill

    said = {"name": name, "model.id": model, "distill.texts": texts, "distill.modules": modules}
    experiment = _experiment(spec, said, settings)
    if steps is not None:
        stages = experiment.distill.schedule.in_steps(steps)
        experiment = with_settings(experiment, {"distill.schedule": stages}, "indexmem")
    if on_ray:
        from indexmem.commands.distill import distill_spec

        _finished(distill_spec(experiment))
        run = check_distill(experiment)
    else:
        from indexmem.distill.local import distill_here

        run = check_distill(experiment)
        check_writable(run_root(experiment))
        total = experiment.distill.schedule.steps
        with tqdm(total=total, unit="step", desc="training", disable=not progress or run.finished) as bar:

            def watch(rows: Sequence[Mapping[str, Any]]) -> None:
                bar.set_postfix(loss=f"{rows[-1]['loss']:.4f}" if "loss" in rows[-1] else "", refresh=False)
                bar.update(rows[-1]["step"] + 1 - bar.n)

            with _one_bar():
                distill_here(experiment, run, watch)
    import pandas as pd

    return TrainedModules(run.final, pd.DataFrame(run.read_history()))


def run_grid(
    model: str | Path | None = None,
    methods: Sequence[SpecEntry] | None = None,
    benchmarks: Sequence[SpecEntry] | None = None,
    ratios: Sequence[float] | None = None,
    *,
    budgets: Sequence[str] | None = None,
    samples: int | None = None,
    length: int | None = None,
    modules: str | Path | TrainedModules | None = None,
    name: str | None = None,
    spec: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    on_ray: bool = False,
    progress: bool = True,
) -> GridResult:
    """Evaluate every (method, budget, benchmark) cell on the same samples; only what is not stored yet is computed.

    ratios: shares of the KV cache that are evicted. budgets: tokens kept per head ('512 tokens') or bytes of all that a
    cell holds ('8 MiB'); given alone, there are no ratios. length: tokens of a sample, its answer included. modules:
    what the methods 'indexer' and 'indexmem' use: a folder, a shipped name such as 'testbed-modules', or what
    `train_modules` returned. settings: any other setting by its dotted name, for example {'grid.haystack': 'book.txt'};
    it and the arguments go over what the file `spec` says.

    An interrupted call loses little: the next one goes on. A method that fails costs its own rows, see
    `GridResult.failed`. Raises UserError for a grid that cannot be evaluated, before it starts.
    """
    from indexmem.evaluate.grid import plan

    if budgets is not None and ratios is None:
        ratios = []
    grid = {"methods": methods, "benchmarks": benchmarks, "ratios": ratios, "budgets": budgets}
    said = {f"grid.{key}": value for key, value in {**grid, "samples": samples, "length": length}.items()}
    checkpoint = modules.folder if isinstance(modules, TrainedModules) else modules
    of_model = {"name": name, "model.id": model, "indexer.checkpoint": checkpoint}
    experiment = _experiment(spec, of_model | said, settings)
    planned = plan(experiment)
    check_writable(run_root(experiment))
    if on_ray:
        from indexmem.commands.evaluate import evaluate_plan

        _finished(evaluate_plan(experiment, planned))
    else:
        _evaluate_in_process(experiment, planned, progress)
    return GridResult(experiment, planned, planned.rows())


def compare(result: GridResult, method: str, baseline: str) -> pd.DataFrame:
    """How far `method` is ahead of `baseline`, by budget and benchmark ('mean' for all), on samples that both answered.

    Columns: budget, benchmark, difference with its 95% interval (low, high), in points of 100, p (of a paired test) and
    n (independent samples, or groups of them). Raises UserError where the grid has no such method.
    """
    import pandas as pd

    from indexmem.results.summary import summarise

    summary = summarise(result.rows)
    for wanted in (method, baseline):
        if wanted not in summary.methods:
            raise UserError(f"The grid has no method '{wanted}'. It has: {', '.join(summary.methods)}.")
    lines = []
    for budget in summary.budgets:
        for benchmark in (MEAN, *summary.benchmarks):
            found = summary.difference((method, budget), (baseline, budget), benchmark)
            if found is not None:
                points = (100 * found.mean, 100 * found.low, 100 * found.high)
                lines.append((str(budget), benchmark, *points, found.p_value, found.n))
    return pd.DataFrame(lines, columns=["budget", "benchmark", "difference", "low", "high", "p", "n"])


def _experiment(
    spec: str | Path | None, arguments: Mapping[str, Any], settings: Mapping[str, Any] | None
) -> Experiment:
    """The file, then the arguments that were given, then the settings. Raises UserError that names what is wrong."""
    base = load(spec) if spec is not None else Experiment()
    said = {key: _plain(value) for key, value in {**arguments, **(settings or {})}.items() if value is not None}
    return with_settings(base, said, "indexmem")


def _plain(value: Any) -> Any:
    """As a spec file would say it."""
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _evaluate_in_process(experiment: Experiment, planned: GridPlan, progress: bool) -> None:
    from indexmem.evaluate.local import evaluate_here
    from indexmem.provenance import provenance

    with tqdm(total=planned.row_count, unit="row", desc=experiment.name, disable=not progress) as bar, _one_bar():
        for state in evaluate_here(experiment, planned, provenance()):
            if state.failed:
                bar.set_postfix(failed=state.failed, refresh=False)
            bar.update(state.done - bar.n)


def _finished(code: int) -> None:
    """Of a command on Ray: a run that a signal has ended is no result."""
    if code >= 128:
        raise KeyboardInterrupt(f"stopped by signal {code - 128}; the same call goes on from here")


@contextmanager
def _one_bar() -> Iterator[None]:
    """Within, transformers shows no bar of its own for the weights that it loads."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()

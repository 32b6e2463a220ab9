"""`indexmem nightly run`: one night from its lease to its verdict. Started twice, it does nothing twice."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Sequence
from pathlib import Path
from signal import Signals

from indexmem.cluster.upload import plan_upload
from indexmem.config.nightly import NightlySpec
from indexmem.config.schema import Experiment
from indexmem.errors import UserError
from indexmem.extras import JOB_VARIABLE
from indexmem.files import check_writable, write_whole
from indexmem.locks.leases import Leases, WorkTaken, hold
from indexmem.nightly.drive import Drive, to_do
from indexmem.nightly.judge import Earlier, judge
from indexmem.nightly.night import Night, Nights
from indexmem.nightly.pages import write_pages
from indexmem.nightly.process import Execute, StepProcess, last_lines
from indexmem.nightly.slots import Slots
from indexmem.nightly.steps import NightStep, freeze_specs, steps_of
from indexmem.nightly.verdict import NightVerdict
from indexmem.nightly.webhook import SCHEMES, notify
from indexmem.progress.view import say
from indexmem.signals import StopSignals
from indexmem.tracking.mlflow_sink import MlflowSink
from indexmem.tracking.naming import score_metrics

BUSY = 4  # exit code: another process works on these nights
TREND_NIGHTS = 30  # earlier ones that a page shows


def run_night(
    spec: NightlySpec,
    date: dt.date | None = None,
    *,
    dry_run: bool = False,
    address: str | None = None,
    execute: Execute | None = None,
) -> int:
    """Run the night of `date` (default: that of the newest slot), or find it done; compare, publish, say what moved.

    `execute` runs a step (default: in a process of its own). Returns the verdict's exit code (0 fine, 1 failures, 3 a
    regression, 5 lost coverage), 4 when another process works on these nights, 128 + the number of a signal that ended
    the night early; it goes on when it is started again. Raises UserError for a spec that is not valid.
    """
    slots, nights = Slots.of(spec), Nights.of(spec)
    night = nights.night(date or slots.newest(slots.now()).date())
    steps = steps_of(spec, night)
    if dry_run:
        _describe(spec, nights, night, steps)
        return 0
    check_writable(nights.folder)
    try:
        with hold(nights.leases, spec.name) as leases:
            return _run(spec, nights, night, steps, leases, execute or StepProcess(address), check=execute is None)
    except WorkTaken as taken:
        say(f"{spec.name}: {taken.lease.owner} works on these nights ({taken.lease.path}). Nothing was done.")
        return BUSY


def _run(
    spec: NightlySpec,
    nights: Nights,
    night: Night,
    steps: Sequence[NightStep],
    leases: Leases,
    execute: Execute,
    *,
    check: bool,
) -> int:
    with StopSignals() as stop:
        work = to_do(night.record(), steps)
        if work:
            night.verdict_file.unlink(missing_ok=True)
            _begin(night, steps, check=check)
            Drive(night, spec.budget, execute, stop, leases.check, say).run(steps)
        if stop.received is not None:
            say(f"Stopped by {Signals(stop.received).name}. The same command goes on from here.")
            return 128 + stop.received
        earlier = Earlier.of(nights, night, spec.compare)
        verdict = night.verdict() or _judge(spec, nights, night, steps, earlier)
        page = _publish(spec, night, verdict)
        nights.forget(spec.retention, [night, *earlier.kept(spec.compare)])
    print(night.note.read_text(encoding="utf-8"))
    print(f"Page: {page}")
    return verdict.exit_code


def _begin(night: Night, steps: Sequence[NightStep], check: bool) -> None:
    """Freeze the specs and find mistakes in all of them before the first step takes a GPU."""
    fresh = list({step.suite: step for step in steps if not step.spec.is_file()}.values())
    freeze_specs(night, steps, freeze)
    for step in fresh if check else ():
        if StepProcess().check(step) == 2:
            for other in fresh:  # the next start reads them anew, mended
                other.spec.unlink()
            raise UserError(f"suite '{step.suite}':\n{last_lines(step)}")


def freeze(experiment: Experiment, folder: Path) -> None:
    """Write a spec into a suite's folder. What a job brought goes there, too: a night may go on as another job, when
    Ray has deleted the first one's folder.
    """
    in_job = JOB_VARIABLE in os.environ
    plan_upload(experiment, send_files=in_job, below=Path.cwd(), folder=folder).write(folder)


def _judge(
    spec: NightlySpec, nights: Nights, night: Night, steps: Sequence[NightStep], earlier: Earlier
) -> NightVerdict:
    verdict = judge(spec, night, steps, earlier)
    write_pages(night, verdict, nights.verdicts(night.date, TREND_NIGHTS))
    write_whole(night.verdict_file, verdict.model_dump_json(indent=1))  # last: with it, the night is judged
    return verdict


def _publish(spec: NightlySpec, night: Night, verdict: NightVerdict) -> str:
    """Mirror the night and send its message. Returns where its page is read: an address, or else its path."""
    sink = MlflowSink.open(spec.place)
    run = _mirror(sink, spec, night, verdict) if sink else None
    if run:
        say(f"MLflow: {run}")
    served = f"{spec.url.rstrip('/')}/{night.date}/{night.page.name}" if spec.url else run or ""
    page = served if served.startswith(SCHEMES) else str(night.page)
    if notify(verdict, night, page):
        say("webhook: sent")
    return page


def _mirror(sink: MlflowSink, spec: NightlySpec, night: Night, verdict: NightVerdict) -> str | None:
    counts = {
        "rows": verdict.rows,
        "failed": verdict.failed,
        "lost": len(verdict.lost),
        "regressions": len(verdict.regressions),
        "improvements": len(verdict.improvements),
        "slowdowns": len(verdict.slowdowns),
        "hours": sum(step.seconds for suite in verdict.suites for step in suite.steps) / 3600,
    }
    scores = {(suite.name, s.method): s.now for suite in verdict.suites for s in suite.scores}
    return sink.publish_night(
        spec.place,
        night.date,
        metrics={name: float(value) for name, value in counts.items()} | score_metrics(scores),
        tags={"status": verdict.status, "headline": verdict.headline, "git_commit": verdict.commit},
        note=night.note.read_text(encoding="utf-8"),
        artifacts={path.name: path for path in (night.page, night.note, night.verdict_file)},
    )


def _describe(spec: NightlySpec, nights: Nights, night: Night, steps: Sequence[NightStep]) -> None:
    record = night.record()
    reference = ", ".join(str(other.date) for other in nights.reference(night.date, spec.compare))
    say(f"nightly {spec.name}, night of {night.date}: {night.folder}\n  compared with: {reference or 'no night yet'}")
    for step in steps:
        say(f"  {step.name}: {record.of(step.name).status}")

"""`indexmem run`, as a user types it, on one shared Ray."""

from contextlib import nullcontext

import pytest

from indexmem.cli import main
from indexmem.config.load import load
from indexmem.distill.runs import DistillRun


@pytest.mark.slow
@pytest.mark.ray
def test_one_command_trains_evaluates_and_reports_and_does_nothing_twice(local_ray, spec_file, capsys, monkeypatch):
    for verb in ("distill", "evaluate"):
        monkeypatch.setattr(f"indexmem.commands.{verb}.ray_cluster", lambda *a, **k: nullcontext())
    overrides = [
        "distill.workers=1",
        "distill.schedule={warmup: 1, stable: 2, decay: 1}",
        "grid.methods=[full, indexer]",
        "grid.benchmarks=[niah_single_1]",
        "grid.samples=2",
        "tracking.enabled=false",
    ]
    assert main(["run", str(spec_file), *overrides]) == 0
    assert DistillRun.of(load(spec_file, overrides)).finished
    done = capsys.readouterr()
    assert "full cache, nothing evicted" in done.out and "Report: " in done.out
    assert main(["run", str(spec_file), *overrides]) == 0
    again = capsys.readouterr()
    assert "already trained" in again.err and "to do: 0 of 6 rows" in again.err
    assert again.out == done.out

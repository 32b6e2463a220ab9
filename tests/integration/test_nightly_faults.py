"""A night on a two-node cluster that loses a node and is killed with SIGKILL: it ends as if nothing had happened."""

import datetime as dt
import os
import subprocess
import sys

import null_night
import pytest
from grids import remaining
from node_cluster import two_node_cluster
from null_driver import part_files
from null_grid import null_plan
from null_night import nightly_file
from waiting import wait_until

from indexmem.config.nightly import load_nightly
from indexmem.nightly.night import Nights
from indexmem.nightly.steps import steps_of

pytestmark = pytest.mark.ray

DATE = dt.date(2026, 11, 1)
SECONDS = 0.2  # for a sample, until all is calm


@pytest.fixture
def two_nodes():
    with two_node_cluster(cpus=1) as cluster:
        yield cluster


def start(spec_file, address: str) -> subprocess.Popen:
    command = [sys.executable, null_night.__file__, str(spec_file), str(DATE), address, str(SECONDS)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "disabled"}
    with (spec_file.parent / "night.log").open("a") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)


def test_a_node_and_the_night_itself_are_lost(two_nodes, tmp_path):
    spec_file = nightly_file(tmp_path, samples=200)
    spec = load_nightly(spec_file)
    night = Nights.of(spec).night(DATE)
    (step,) = steps_of(spec, night)
    plan = null_plan(step.experiment)
    stored = lambda: len(part_files(step.folder))  # noqa: E731
    said = lambda: (tmp_path / "night.log").read_text()  # noqa: E731

    process = start(spec_file, two_nodes.address)
    try:
        wait_until(lambda: stored() >= 2 or process.poll() is not None)
        assert process.poll() is None, said()
        two_nodes.remove_node(next(iter(two_nodes.worker_nodes)), allow_graceful=False)
        seen = stored()
        wait_until(lambda: stored() > seen or process.poll() is not None)
        process.kill()
        process.wait()
        assert night.verdict() is None
        missing = sum(int(missing_SC.sum()) for missing_SC in plan.missing().values())
        assert 0 < missing < plan.row_count, "killed in the middle"

        (tmp_path / "calm").touch()
        process = start(spec_file, two_nodes.address)
        assert process.wait(timeout=300) == 0, said()
    finally:
        process.kill()
    verdict = night.verdict()
    assert (verdict.status, verdict.suites[0].rows, verdict.suites[0].failed) == ("fine", plan.row_count, 0)
    assert remaining(plan) == []
    assert night.record().of("null/eval").status == "done"

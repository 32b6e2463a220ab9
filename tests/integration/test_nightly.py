"""Twenty nights without change, the last on a real Ray, then one that lost something."""

import datetime as dt

import null_grid
import null_night
import pytest
from null_night import DAMAGED_BUDGET, RaySuite, WaveringLoad, in_process, nightly_file
from ray import cloudpickle

from indexmem.commands.nightly import run_night
from indexmem.config.nightly import load_nightly
from indexmem.nightly.night import Nights

pytestmark = pytest.mark.ray

NIGHTS = 20


@pytest.fixture(autouse=True)
def _ship_test_code(local_ray):
    """Workers cannot import test modules by name."""
    for module in (null_grid, null_night):
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in (null_grid, null_night):
        cloudpickle.unregister_pickle_by_value(module)


def test_a_loss_is_flagged_after_twenty_nights_of_noise(tmp_path):
    spec = load_nightly(nightly_file(tmp_path, samples=40), ["retention.modules=1", "retention.rows=10"])
    first = dt.date(2026, 11, 1)
    dates = [first + dt.timedelta(days=number) for number in range(NIGHTS + 1)]
    suites = [in_process] * (NIGHTS - 1) + [RaySuite()]
    assert [run_night(spec, date, execute=suite) for date, suite in zip(dates, suites)] == [0] * NIGHTS
    assert run_night(spec, dates[NIGHTS], execute=RaySuite(WaveringLoad(lost=0.5))) == 3

    nights = Nights.of(spec)
    verdict = nights.night(dates[NIGHTS]).verdict()
    assert verdict.reference == tuple(reversed(dates[NIGHTS - 5 : NIGHTS]))
    assert verdict.compared == 6
    assert {change.budget for change in verdict.regressions} == {None, DAMAGED_BUDGET}
    quiet = nights.night(dates[NIGHTS - 1]).verdict()
    assert quiet.suites[0].rows == 240
    moved = [score for score in quiet.suites[0].scores if score.now != score.before]
    assert moved, "nights differ, or quiet ones would prove nothing"
    assert sum(night.has_rows for night in nights.all()) == 10

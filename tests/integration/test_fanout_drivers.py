"""Drivers that are told to stop, and drivers that share a store."""

import signal
import time

import pytest
import ray
from null_driver import Driver, actors, assert_complete, part_files
from waiting import wait_until

pytestmark = pytest.mark.ray

SMALL = ("grid.samples=12",)  # 72 rows in 12 units


@pytest.fixture
def address(local_ray):
    return ray.get_runtime_context().gcs_address


def test_a_driver_told_to_stop_stores_what_is_under_way_and_the_next_goes_on(address, tmp_path):
    driver = Driver(tmp_path, address, 0.5, *SMALL)
    wait_until(lambda: len(part_files(tmp_path)) >= 2)
    driver.process.send_signal(signal.SIGTERM)
    stored = len(part_files(tmp_path))
    assert driver.wait(20) == 128 + signal.SIGTERM, driver.said
    assert "stopping in" in driver.said
    assert "ended: " in driver.said
    assert stored < len(part_files(tmp_path)) < 12
    (tmp_path / "calm").touch()
    assert Driver(tmp_path, address, 0.5, *SMALL).wait() == 0
    assert_complete(tmp_path, *SMALL)


@pytest.mark.parametrize("overrides", [("grid.drain_seconds=1",), ()], ids=["time_is_up", "second_signal"])
def test_a_driver_does_not_wait_longer_than_it_may(address, tmp_path, overrides):
    driver = Driver(tmp_path, address, 600.0, *SMALL, *overrides)
    wait_until(lambda: actors("Evaluator.evaluate"))
    started = time.monotonic()
    driver.process.send_signal(signal.SIGINT)
    if not overrides:
        wait_until(lambda: "stopping in" in driver.said)
        driver.process.send_signal(signal.SIGINT)
    assert driver.wait(15) == 130, driver.said
    assert time.monotonic() - started < 15
    assert part_files(tmp_path) == []
    assert list((tmp_path / "leases").iterdir()) == []
    wait_until(lambda: not actors("Evaluator.evaluate"))


def test_ctrl_c_in_the_terminal_reaches_the_driver_not_the_actors_of_its_private_cluster(tmp_path):
    driver = Driver(tmp_path, "local", 0.5, *SMALL)
    wait_until(lambda: len(part_files(tmp_path)) >= 2)
    driver.interrupt()
    assert driver.wait(30) == 130, driver.said
    assert "stopping in" in driver.said
    stored = len(part_files(tmp_path))
    assert 2 < stored < 12
    wait_until(lambda: not actors())


def test_the_same_grid_started_twice_is_computed_once(address, tmp_path):
    first = Driver(tmp_path, address, 0.2, *SMALL, log="first.log")
    second = Driver(tmp_path, address, 0.2, *SMALL, log="second.log")
    assert (first.wait(), second.wait()) == (0, 0), first.said + second.said
    (waiting,) = [driver.said for driver in (first, second) if "waiting for" in driver.said]
    assert "waiting for 6 cells of " in waiting
    assert "To take over, end that run, or delete its lease file" in waiting
    assert "ended: 72/72 rows" in waiting
    assert_complete(tmp_path, *SMALL)


def test_a_driver_whose_lease_is_deleted_gives_way(address, tmp_path):
    first = Driver(tmp_path, address, 600.0, *SMALL, log="first.log")
    wait_until(lambda: actors("Evaluator.evaluate"))
    second = Driver(tmp_path, address, 0.0, *SMALL, log="second.log")
    wait_until(lambda: "waiting for" in second.said)
    (lease,) = (tmp_path / "leases").glob("*.json")
    lease.unlink()
    assert first.wait(30) == 1
    assert "was taken over" in first.said
    assert second.wait() == 0, second.said
    assert_complete(tmp_path, *SMALL)


def test_different_cells_in_one_store_do_not_wait_for_each_other(address, tmp_path):
    halves = [(*SMALL, "grid.actors=1", f"grid.benchmarks=[{name}]") for name in ("null_a", "null_b")]
    drivers = [Driver(tmp_path, address, 0.3, *half, log=f"{half[-1]}.log") for half in halves]
    wait_until(lambda: len(actors("Evaluator.evaluate")) == 2)
    assert [driver.wait() for driver in drivers] == [0, 0]
    assert not any("waiting for" in driver.said for driver in drivers)
    assert_complete(tmp_path, *SMALL)

"""A two-node cluster on which actors, nodes and drivers are killed: every row once, as if nothing had happened."""

import random
import time

import pytest
from node_cluster import add_node, two_node_cluster
from null_driver import Driver, actors, assert_complete
from null_grid import null_plan, null_spec
from psutil import Process
from waiting import wait_until

pytestmark = pytest.mark.ray

KILLS = ["actor"] * 22 + ["driver"] * 5 + ["node"] * 3
SECONDS = 0.4  # for a sample, until all is calm: four actors would need a minute for the grid


@pytest.fixture
def two_nodes():
    with two_node_cluster(cpus=2) as cluster:
        yield cluster


def kill_an_actor(rng: random.Random, driver: Driver) -> None:
    """One that is at work: a driver gives up when three in a row die while loading, and on a slow machine most load."""
    at_work: list[Process] = []

    def found() -> bool:
        assert driver.process.poll() is None, driver.said
        at_work[:] = actors("Evaluator.evaluate")
        return bool(at_work)

    wait_until(found)
    rng.choice(sorted(at_work, key=lambda process: process.pid)).kill()


def test_thirty_kills_of_actors_nodes_and_drivers_change_no_row(two_nodes, tmp_path):
    rng = random.Random(0)
    plan = null_plan(null_spec(tmp_path))
    start = lambda: Driver(tmp_path, two_nodes.address, SECONDS, "grid.max_attempts=8")  # noqa: E731
    driver = start()
    try:
        for kill in rng.sample(KILLS, len(KILLS)):
            assert driver.process.poll() is None, driver.said
            if kill == "actor":
                kill_an_actor(rng, driver)
            elif kill == "node":
                nodes = sorted(two_nodes.worker_nodes, key=lambda node: node.unique_id)
                two_nodes.remove_node(rng.choice(nodes), allow_graceful=False)
                add_node(two_nodes, cpus=2)
            else:
                driver.kill()
                driver = start()
            time.sleep(rng.uniform(0.1, 0.8))
        # The crew comes back to its size on the nodes that joined.
        wait_until(lambda: "4 actors" in driver.said.splitlines()[-1] or driver.process.poll() is not None)
        stored = plan.row_count - sum(int(missing_SC.sum()) for missing_SC in plan.missing().values())
        assert 0 < stored < plan.row_count, "killed in the middle"
        (tmp_path / "calm").touch()
        assert driver.wait() == 0, driver.said
    finally:
        driver.kill()
    assert_complete(tmp_path)
    assert len(plan.store.read(plan.partitions, "retention")) == 2 * 2 * 3

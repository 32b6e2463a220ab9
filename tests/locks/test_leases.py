"""Leases: no cell to two living drivers, every cell of a dead one to the next."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest

from indexmem.errors import UserError
from indexmem.locks.leases import Leases


def held(lease: Leases, cells: set[str]) -> set[str]:
    return {cell for other in lease.claim(cells)[1] for cell in other.cells}


def test_free_cells_are_taken_and_the_others_have_an_owner(tmp_path):
    with Leases(tmp_path / "leases") as first, Leases(tmp_path / "leases") as second:
        assert first.claim({"a", "b"}) == ({"a", "b"}, [])
        mine, others = second.claim({"b", "c"})
        assert mine == {"c"}
        (lease,) = others
        assert f"pid {os.getpid()}" in lease.owner
        assert lease.cells == {"a", "b"}
        assert lease.path.exists()
        first.release()
        assert second.claim({"b", "c"}) == ({"b", "c"}, [])
    assert list((tmp_path / "leases").iterdir()) == []


def test_drivers_that_claim_at_the_same_moment_never_share_a_cell(tmp_path):
    cells = {str(number) for number in range(6)}
    drivers = [Leases(tmp_path) for _ in range(6)]
    barrier, claims = threading.Barrier(6), []

    def run(number: int) -> None:
        barrier.wait()
        claims.append(drivers[number].claim({str(number), str((number + 1) % 6)})[0])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    taken = [cell for claim in claims for cell in claim]
    assert len(claims) == 6
    assert len(taken) == len(set(taken)), claims
    assert set(taken) == cells
    for driver in drivers:
        driver.release()


def test_a_lease_without_heartbeat_is_void_and_its_owner_learns_of_it(tmp_path):
    stalled = Leases(tmp_path, heartbeat=3600)
    stalled.claim({"a"})
    (path,) = tmp_path.glob("*.json")
    with Leases(tmp_path, stale=30) as next_driver:
        assert held(next_driver, {"a"}) == {"a"}
        os.utime(path, (0, path.stat().st_mtime - 31))
        assert next_driver.claim({"a"})[0] == {"a"}
        assert not path.exists()
    stalled.release()


def test_a_living_driver_beats_and_notices_a_takeover(tmp_path):
    with Leases(tmp_path, heartbeat=0.05) as driver:
        driver.claim({"a"})
        (path,) = tmp_path.glob("*.json")
        os.utime(path, (0, 0))
        deadline = time.monotonic() + 10
        while path.stat().st_mtime < 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert path.stat().st_mtime > 1
        driver.check()
        path.unlink()
        while not driver.lost and time.monotonic() < deadline:
            time.sleep(0.01)
        with pytest.raises(UserError, match="taken over"):
            driver.check()
        assert driver.claim({"a"})[0] == {"a"}
        driver.check()


def test_a_killed_driver_of_this_machine_does_not_hold_up_the_next(tmp_path):
    code = "import sys; from pathlib import Path; from indexmem.locks.leases import Leases\n"
    code += "Leases(Path(sys.argv[1])).claim({'a'}); print('held', flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    with Leases(tmp_path) as driver:
        assert held(driver, {"a"}) == {"a"}
        process.kill()
        process.communicate()
        assert driver.claim({"a"})[0] == {"a"}


def test_a_process_number_says_nothing_about_another_machine(tmp_path):
    with Leases(tmp_path) as driver:
        content = {"owner": "bob@elsewhere", "machine": "another", "pid": 2**30, "cells": ["a"]}
        (tmp_path / "elsewhere.json").write_text(json.dumps(content))
        assert [lease.owner for lease in driver.claim({"a"})[1]] == ["bob@elsewhere"]


def test_files_that_are_no_leases_are_left_alone(tmp_path):
    (tmp_path / "notes.json").write_text("hello")
    with Leases(tmp_path) as driver:
        assert driver.claim({"a"}) == ({"a"}, [])
    assert (tmp_path / "notes.json").exists()

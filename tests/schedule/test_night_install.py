"""What schedulers are given: checked by systemd where it is there, by a crontab of our own, and as YAML."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from night_rows import nightly_spec

from indexmem.config.nightly import NightlySpec
from indexmem.errors import UserError
from indexmem.schedule.call import Call
from indexmem.schedule.cronjob import kubernetes_cronjob
from indexmem.schedule.crontab import crontab_lines, write_crontab
from indexmem.schedule.systemd import on_calendar, systemd_units, write_systemd

CRONTAB = """#!/bin/sh
test "$1" = - && exec cat > "$CRONTAB_FILE"
test -f "$CRONTAB_FILE" || { echo "no crontab" >&2; exit 1; }
cat "$CRONTAB_FILE"
"""


def call(root: Path, *overrides: str, **settings: object) -> Call:
    spec: NightlySpec = nightly_spec(root).model_copy(update=settings)
    return Call(spec, root / "100% mine" / "nightly.yaml", overrides)


@pytest.mark.parametrize(
    ("cron", "timezone", "expected"),
    [
        ("0 2 * * *", None, "*-*-* 02:00:00"),
        ("30 22 * * 1-5", None, "Mon,Tue,Wed,Thu,Fri *-*-* 22:30:00"),
        ("5 0 * * 0", "Europe/Berlin", "Sun *-*-* 00:05:00 Europe/Berlin"),
        ("5 0 * * 5-7", None, "Fri,Sat,Sun *-*-* 00:05:00"),
    ],
)
def test_calendar_events_mean_what_cron_means(tmp_path, cron, timezone, expected):
    event = on_calendar(call(tmp_path, cron=cron, timezone=timezone).spec)
    assert event == expected
    if shutil.which("systemd-analyze"):
        subprocess.run(["systemd-analyze", "calendar", event], check=True, capture_output=True)


def test_what_systemd_cannot_say_is_a_mistake(tmp_path):
    with pytest.raises(UserError, match="--kind cron"):
        on_calendar(call(tmp_path, cron="0 2 1 * *").spec)


def test_units_catch_up_and_pass_systemd_s_own_check(tmp_path, monkeypatch):
    monkeypatch.setenv("INDEXMEM_HOME", str(tmp_path / "50% home"))
    one = call(tmp_path, "compare.level=0.05")
    units = systemd_units(one)
    assert "Persistent=true" in units["indexmem-nightly.timer"]
    assert '"compare.level=0.05"' in units["indexmem-nightly.service"]
    assert "50%% home" in units["indexmem-nightly.service"]
    paths = write_systemd(one, tmp_path / "units")
    if shutil.which("systemd-analyze"):
        environment = os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)}
        done = subprocess.run(
            ["systemd-analyze", "verify", "--user", *map(str, paths)], capture_output=True, text=True, env=environment
        )
        assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def crontab(tmp_path, monkeypatch):
    """A `crontab` that keeps its lines in a file."""
    program = tmp_path / "bin" / "crontab"
    program.parent.mkdir()
    program.write_text(CRONTAB)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("CRONTAB_FILE", str(tmp_path / "table"))
    monkeypatch.setenv("INDEXMEM_HOME", str(tmp_path / "home"))
    return tmp_path / "table"


def test_crontab_keeps_other_lines_and_has_one_block(tmp_path, crontab):
    crontab.write_text("0 1 * * * backup\n")
    write_crontab(call(tmp_path))
    write_crontab(call(tmp_path, cron="0 4 * * *"))
    lines = crontab.read_text().splitlines()
    assert lines[0] == "0 1 * * * backup"
    assert [line[:9] for line in lines[2:4]] == ["0 4 * * *", "@reboot s"]
    assert len(lines) == 5
    assert r"100\% mine" in lines[2]


def test_the_crontab_line_is_a_command_that_works(tmp_path, crontab):
    """What cron hands to the shell, with a spec that is not there: the mistake lands in the log."""
    line = crontab_lines(call(tmp_path)).splitlines()[1].removeprefix("0 2 * * * ").replace(r"\%", "%")
    (tmp_path / "home").mkdir()
    environment = os.environ | {"HOME": str(tmp_path)}
    assert subprocess.run(["/bin/sh", "-c", line], env=environment).returncode == 2
    assert "No spec file at" in (tmp_path / "home" / "indexmem-nightly.log").read_text()


def test_crontabs_know_no_time_zone(tmp_path):
    with pytest.raises(UserError, match="time zone"):
        crontab_lines(call(tmp_path, timezone="UTC"))


def test_the_cronjob_never_runs_twice_at_a_time(tmp_path):
    one = call(tmp_path, "compare.level=0.05", timezone="UTC", name="Big_Night")
    manifest = yaml.safe_load(kubernetes_cronjob(one, "registry/indexmem:1", "sweeps/nightly.yaml"))
    assert manifest["metadata"]["name"] == "indexmem-big-night"
    assert (manifest["spec"]["concurrencyPolicy"], manifest["spec"]["timeZone"]) == ("Forbid", "UTC")
    (container,) = manifest["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert container["command"][-2:] == ["sweeps/nightly.yaml", "compare.level=0.05"]

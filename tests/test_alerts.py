"""The alert rules: Prometheus takes them, they speak of metrics that exist, and they fire when they should."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from indexmem.progress.ray_metrics import COUNTERS, GAUGES, HISTOGRAMS

REPOSITORY = Path(__file__).parents[1]
PROMETHEUS = REPOSITORY / "dashboards" / "prometheus"
ALERTS = PROMETHEUS / "alerts.yml"
EXPORTED = {f"ray_{name}_total" for name in COUNTERS} | {f"ray_{name}" for name in (*GAUGES, *HISTOGRAMS)}
STORED, WANTED = 'ray_indexmem_grid_rows_stored{run="g"}', 'ray_indexmem_grid_rows_wanted{run="g"}'
FAILED = 'ray_indexmem_grid_rows_total{run="g",status="failed"}'
JOB = 'kube_job_status_failed{namespace="n",job_name="indexmem-nightly-1"}'
CRON = 'kube_cronjob_status_last_schedule_time{namespace="n",cronjob="indexmem-nightly"}'
# alert -> series, when it is silent, when it fires
CASES = {
    "IndexmemRowsFail": ({FAILED: "0x30 1x30"}, "20m", "32m"),
    "IndexmemGridStalled": ({STORED: "0+1x30 30x120", WANTED: "100x150"}, "35m", "90m"),
    "IndexmemNightFailed": ({JOB: "0x30 1x30"}, "20m", "40m"),
    "IndexmemNoNight": ({CRON: "0x2000"}, "25h", "27h"),
}


def rules() -> list[dict]:
    return yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"][0]["rules"]


def test_the_operators_object_holds_the_same_rules():
    copy = yaml.safe_load((REPOSITORY / "deploy/kubernetes/monitoring/alerts.yaml").read_text(encoding="utf-8"))
    assert copy["spec"] == yaml.safe_load(ALERTS.read_text(encoding="utf-8"))


def test_they_speak_of_metrics_that_are_exported():
    named = {name for rule in rules() for name in re.findall(r"ray_indexmem_\w+", rule["expr"])}
    assert named and named <= EXPORTED
    assert {rule["alert"] for rule in rules()} == CASES.keys()


@pytest.mark.parametrize("alert", CASES)
def test_it_is_silent_until_it_should_not_be(alert, tmp_path):
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    series, silent, fires = CASES[alert]
    (rule,) = [each for each in rules() if each["alert"] == alert]
    plain = {"alert": alert, "expr": rule["expr"], "for": rule.get("for", "0s"), "labels": {"firing": "yes"}}
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "one", "rules": [plain]}]}))
    labels = {"run": "g"} if "Night" not in alert else {"namespace": "n"}
    labels |= {
        "IndexmemNightFailed": {"job_name": "indexmem-nightly-1"},
        "IndexmemNoNight": {"cronjob": "indexmem-nightly"},
    }.get(alert, {})
    case = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [
            {"eval_time": silent, "alertname": alert, "exp_alerts": []},
            {"eval_time": fires, "alertname": alert, "exp_alerts": [{"exp_labels": labels | {"firing": "yes"}}]},
        ],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "tests": [case]}))
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    checked = subprocess.run(["promtool", "check", "rules", str(ALERTS)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr

"""What Ray exports reaches a real Prometheus, and every panel of the Grafana dashboards can be drawn from it."""

import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import metrics_driver
import psutil
import pytest
import yaml

from indexmem.config.distill import DistillConfig
from indexmem.progress.ray_metrics import COUNTERS, GAUGES, HISTOGRAMS

DASHBOARDS = Path(__file__).parents[2] / "dashboards" / "grafana"
PROMETHEUS = shutil.which("prometheus")
pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(PROMETHEUS is None, reason="no Prometheus on this machine: apt-get install prometheus"),
]
VARIABLES = {"$run": ".*", "$node": ".*", "$__rate_interval": "20s"}  # what Grafana would put in


def expressions(name: str) -> dict[str, str]:
    """'<panel>/<legend>' -> query, as Grafana would send it."""
    found = {}
    for panel in json.loads((DASHBOARDS / f"{name}.json").read_text())["panels"]:
        for target in panel["targets"]:
            query = target["expr"]
            for variable, value in VARIABLES.items():
                query = query.replace(variable, value)
            found[f"{panel['title']}/{target['legendFormat']}"] = query
    return found


class Prometheus:
    """A real server that finds Ray's nodes through the file that Ray writes."""

    def __init__(self, folder: Path, discovery: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        scrape = {"job_name": "ray", "file_sd_configs": [{"files": [str(discovery)], "refresh_interval": "1s"}]}
        config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [scrape]}
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        options = {
            "config.file": folder / "prometheus.yml",
            "storage.tsdb.path": folder / "data",
            "web.listen-address": self.url.removeprefix("http://"),
        }
        self.log = folder / "prometheus.log"
        with self.log.open("w") as log:
            command = [PROMETHEUS, *(f"--{name}={value}" for name, value in options.items())]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)

    def query(self, expression: str) -> list[float]:
        """The last value of each series that a panel of the last two minutes would draw.

        Raises AssertionError with Prometheus' words when it does not parse.
        """
        now = time.time()
        fields = {"query": expression, "start": now - 120, "end": now, "step": 1}
        url = f"{self.url}/api/v1/query_range?{urllib.parse.urlencode(fields)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                return [float(series["values"][-1][1]) for series in json.load(response)["data"]["result"]]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {json.load(error)['error']}") from None
        except urllib.error.URLError:
            return []  # still starting

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(20)


@pytest.fixture
def prometheus(tmp_path, spec_file):
    """Prometheus, while a grid of tiny models runs on a Ray of its own, and for as long as one looks afterwards."""
    text = yaml.safe_load(spec_file.read_text())
    text["grid"] |= {"samples": 8, "samples_per_batch": 1}
    spec_file.write_text(yaml.safe_dump(text))
    ray_folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # paths of sockets must be short
    environment = os.environ | {"OMP_NUM_THREADS": "1", "RAY_metrics_report_interval_ms": "1000"}
    server = Prometheus(tmp_path, ray_folder / "prom_metrics_service_discovery.json")
    driver = subprocess.Popen(
        [sys.executable, metrics_driver.__file__, str(spec_file), str(ray_folder)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert driver.stdout.readline().startswith("done: 112/112 rows")
        yield server
    finally:
        children = psutil.Process(driver.pid).children(recursive=True)
        driver.stdin.close()
        driver.wait(30)
        server.end()
        psutil.wait_procs(children, timeout=10)
        shutil.rmtree(ray_folder, ignore_errors=True)


def eventually(prometheus, wanted) -> None:
    """What is exported arrives some collections later, each metric at a time of its own."""
    deadline = time.monotonic() + 60
    while (found := wanted()) is not True:
        assert time.monotonic() < deadline, f"{found}: {prometheus.log.read_text()[-2000:]}"
        time.sleep(0.5)


def test_every_panel_parses_and_those_of_our_runs_have_data(prometheus):
    ours = expressions("grid") | expressions("training")

    def without_data(queries: dict[str, str], excused: set[str]) -> bool | list[str]:
        empty = [name for name, query in queries.items() if not prometheus.query(query)]
        return {name.split("/")[0] for name in empty} <= excused or empty

    rows = "sum(ray_indexmem_grid_rows_total)"
    eventually(prometheus, lambda: prometheus.query(rows) == [112] or prometheus.query(rows))
    eventually(prometheus, lambda: without_data(ours, set()))
    assert prometheus.query("ray_indexmem_grid_rows_stored / ray_indexmem_grid_rows_wanted") == [1]
    assert prometheus.query('ray_indexmem_grid_cells{state="done"}') == [14]
    assert prometheus.query('ray_indexmem_grid_tokens_total{stage="prefill"}')[0] > 16 * 400
    assert prometheus.query("ray_indexmem_grid_cache_bytes")[0] > 0
    assert prometheus.query("sum(ray_indexmem_grid_unit_seconds_count)")[0] >= 16
    assert prometheus.query("ray_indexmem_training_step") == [4]
    assert prometheus.query("ray_indexmem_training_tokens_total") == [4 * 2 * DistillConfig().batch_size * 96]
    assert all(math.isfinite(value) for value in prometheus.query(ours["Rows per second/{{benchmark}} {{status}}"]))

    # Of the machine: what has no data here is a graphics card.
    eventually(prometheus, lambda: without_data(expressions("cluster"), {"GPU use", "GPU memory"}))

    exported = {
        *(f"ray_{name}_total" for name in COUNTERS),
        *(f"ray_{name}" for name in GAUGES),
        *(f"ray_{name}_bucket" for name in HISTOGRAMS),
    }
    named = set(re.findall(r"ray_indexmem_\w+", " ".join(ours.values())))
    assert named == exported, "every metric is on a dashboard, and every one on a dashboard is exported"

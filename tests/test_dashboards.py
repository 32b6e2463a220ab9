"""The Grafana dashboards as files: complete, without panels over each other, and in step with what is exported."""

import itertools
import json
import re
from pathlib import Path

import pytest

from indexmem.progress.ray_metrics import COUNTERS, GAUGES, HISTOGRAMS

FOLDER = Path(__file__).parents[1] / "dashboards"
FILES = sorted((FOLDER / "grafana").glob("*.json"))
COLUMNS = 24
EXPORTED = {
    *(f"ray_{name}_total" for name in COUNTERS),
    *(f"ray_{name}" for name in GAUGES),
    *(f"ray_{name}_bucket" for name in HISTOGRAMS),
}
OURS = re.compile(r"ray_indexmem_\w+")
# Variables of Grafana itself.
BUILT_IN = {"__rate_interval", "__all"}


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def dashboard(request):
    return json.loads(request.param.read_text(encoding="utf-8"))


def expressions(dashboard) -> list[str]:
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def area(panel) -> set[tuple[int, int]]:
    place = panel["gridPos"]
    columns = range(place["x"], place["x"] + place["w"])
    return set(itertools.product(columns, range(place["y"], place["y"] + place["h"])))


def test_there_are_three_with_names_of_their_own():
    boards = [json.loads(path.read_text(encoding="utf-8")) for path in FILES]
    assert [path.stem for path in FILES] == ["cluster", "grid", "training"]
    for key in ("uid", "title"):
        assert len({board[key] for board in boards}) == 3


def test_every_panel_says_what_it_shows(dashboard):
    for panel in dashboard["panels"]:
        assert panel["title"] and panel["description"].endswith("."), panel["id"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
        assert all(target["legendFormat"] and target["expr"] for target in panel["targets"]), panel["title"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references), panel["title"]


def test_panels_have_their_own_place(dashboard):
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in itertools.combinations(panels, 2):
        assert not area(one) & area(other), f"{one['title']} covers {other['title']}"
    assert all(x < COLUMNS for panel in panels for x, _ in area(panel))


def test_the_source_is_chosen_by_a_variable_and_every_variable_exists(dashboard):
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    sources = [panel["datasource"] for panel in dashboard["panels"]]
    sources += [target["datasource"] for panel in dashboard["panels"] for target in panel["targets"]]
    sources += [variable["datasource"] for variable in variables.values() if variable["type"] == "query"]
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(dashboard)))
    assert used - BUILT_IN == set(variables)


def test_our_metrics_are_exported_shown_and_explained():
    boards = [json.loads(path.read_text(encoding="utf-8")) for path in FILES]
    shown = {name for board in boards for text in expressions(board) for name in OURS.findall(text)}
    assert shown == EXPORTED
    explained = set(OURS.findall((FOLDER / "README.md").read_text(encoding="utf-8")))
    assert {name.removesuffix("_bucket") for name in EXPORTED} == explained

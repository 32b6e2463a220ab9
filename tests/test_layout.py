"""The rules of the tree, held by a test: import direction, who may import what, names that would shadow others."""

import ast
import os
import platform
import subprocess
import sys
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
import yaml

from indexmem.cli import main
from indexmem.config.load import load
from indexmem.models.assets import MADE_BY, shipped_models

REPOSITORY = Path(__file__).parents[1]
PACKAGE = REPOSITORY / "platform" / "indexmem"
MODULES = sorted(PACKAGE.rglob("*.py"))
TESTBED_MODULES = sorted((REPOSITORY / "indexmem-testbed" / "indexmem_testbed").rglob("*.py"))
SWEEPS = REPOSITORY / "sweeps"
TABLES = set(SWEEPS.rglob("table*.yaml"))  # of runs, which are other files' specs
SPECS = sorted(set(SWEEPS.rglob("*.yaml")) - {SWEEPS / "nightly.yaml"} - TABLES)

# A folder may import the folders named here (and itself); `evaluate` stands on everything below it.
ALLOWED = {
    "config": set(),
    "plugins": {"config"},
    "kernels": set(),
    "locks": set(),
    "progress": set(),
    "texts": {"config", "plugins"},
    "models": {"config", "locks"},
    "eviction": {"config", "plugins", "models", "kernels"},
    "engine": {"config", "models", "eviction", "kernels"},
    "export": {"config", "models", "eviction"},
    "generation": {"config", "models", "eviction", "engine"},
    "distill": {"config", "plugins", "texts", "models", "eviction", "progress", "kernels", "locks"},
    "benchmarks": {"config", "plugins", "texts", "models", "locks"},
    "results": {"config"},
    "tracking": {"config", "results", "locks"},
    "report": {"config", "results"},
    "board": {"config", "texts", "results", "report"},
    "cluster": {"config", "plugins"},
    "sweep": {
        *("config", "models", "eviction", "distill", "evaluate", "results", "tracking", "progress"),
        *("plugins", "cluster", "locks", "report"),
    },
    "nightly": {"config", "results", "progress"},
    "evaluate": {
        *(
            "config",
            "texts",
            "models",
            "eviction",
            "engine",
            "distill",
            "benchmarks",
            "results",
            "progress",
            "cluster",
            "locks",
        ),
    },
}
COMMAND_LINE = {"__init__.py", "__main__.py", "cli", "cli.py", "commands", "api", "api.py"}  # nothing below imports it
# Within eviction/, by folder ("" is eviction/ itself): what counts and scores tokens knows no method, methods no press.
NOT_WITHIN_EVICTION = {"": {"methods", "press"}, "memory": {"methods", "press"}, "methods": {"press"}, "press": set()}
KNOW_METHODS = {"footprint.py"}  # what a method holds, in bytes
ONLY_IN = {
    "ray": {
        "cluster",
        "distill/train.py",
        "evaluate/crew.py",
        "progress/ray_metrics.py",
        "sweep/asha.py",
        "sweep/nested.py",
        "sweep/tune_run.py",
    },
    "mlflow": {"tracking"},
    "optuna": {"sweep/proposals.py"},
    "plotly": {"report", "sweep/picture.py", "sweep/page.py"},
    "kaleido": {"report/images.py"},
    "triton": {"kernels"},
    "kvpress": {"eviction/press"}
    | {
        f"eviction/methods/{name}.py"
        for name in ("kvpress_scores", "compactor", "pretrained", "fastkvzip", "factories", "foreign", "registry")
    },
}


def imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path):
    place = path.relative_to(PACKAGE)
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "indexmem" and place.parts[0] in ALLOWED and len(parts) > 1:
            target = parts[1]
            if target in ALLOWED and target != place.parts[0]:
                assert target in ALLOWED[place.parts[0]], f"{place} imports indexmem.{target}"
        if parts[0] == "indexmem" and len(parts) > 1 and place.parts[0] not in COMMAND_LINE:
            assert parts[1] not in COMMAND_LINE, f"{place} imports the command line"
        assert parts[0] != "indexmem_testbed", f"{place} imports the package that trains the testbed"
        if parts[0] in ONLY_IN:
            homes = ONLY_IN[parts[0]]
            assert any(Path(home) in (place, *place.parents) for home in homes), f"{place} imports {parts[0]}"


def test_a_worker_learns_its_work_before_it_loads_torch():
    """An actor without a model starts at once, and the driver of a fan-out takes little memory."""
    code = "import sys, indexmem.evaluate.crew; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=os.environ, check=False).returncode == 0


@pytest.mark.parametrize("path", sorted((PACKAGE / "eviction").rglob("*.py")), ids=lambda p: p.name)
def test_eviction_imports_go_one_way(path):
    inside = path.relative_to(PACKAGE / "eviction")
    if inside.name in KNOW_METHODS:
        return
    forbidden = NOT_WITHIN_EVICTION[inside.parts[0] if len(inside.parts) > 1 else ""]
    for name in imports(path):
        parts = name.split(".")
        if parts[:2] == ["indexmem", "eviction"]:
            assert parts[2] not in forbidden, f"eviction/{inside} imports eviction.{parts[2]}"


def rooms_of(path: Path) -> set[str]:
    """Other folders of the package that a module imports from."""
    found = {name.split(".")[1] for name in imports(path) if name.startswith("indexmem.")} & set(ALLOWED)
    return found - {path.relative_to(PACKAGE).parts[0]}


def test_no_folder_may_import_what_it_does_not_import():
    used = {room: set().union(*map(rooms_of, (PACKAGE / room).rglob("*.py"))) for room in ALLOWED}
    assert used == ALLOWED


def test_folders_stand_in_an_order():
    TopologicalSorter(ALLOWED).prepare()  # raises CycleError


def test_every_folder_has_its_rule():
    folders = {path.parent.relative_to(PACKAGE).parts[0] for path in MODULES if path.parent != PACKAGE}
    assert folders == {*ALLOWED, "commands"}


def test_what_stands_outside_of_folders_imports_little_of_them():
    outside = {path for path in MODULES if path.parent == PACKAGE and path.name not in COMMAND_LINE}
    assert {path.name: rooms_of(path) for path in outside if rooms_of(path)} == {"archives.py": {"config", "locks"}}


def defined(path: Path) -> dict[str, bool]:
    """Public names that a module defines at its top -> whether it is a constant."""
    names = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names[node.name] = False
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id: target.id.isupper() for target in targets if isinstance(target, ast.Name)}
    return {name: constant for name, constant in names.items() if not name.startswith("_")}


def test_a_public_name_has_one_home():
    """Classes, functions and types, and constants that other modules import; a module's own constants may repeat."""
    imported = {name for path in MODULES for name in imports(path)}
    homes = defaultdict(list)
    for path in MODULES:
        module = ".".join(("indexmem", *path.relative_to(PACKAGE).with_suffix("").parts))
        for name, constant in defined(path).items():
            if not constant or f"{module}.{name}" in imported:
                homes[name].append(str(path.relative_to(PACKAGE)))
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_no_file_outgrows_its_responsibility():
    lines = {path.relative_to(PACKAGE): len(path.read_text().splitlines()) for path in MODULES}
    lines |= {path.relative_to(REPOSITORY): len(path.read_text().splitlines()) for path in TESTBED_MODULES}
    assert {str(path): count for path, count in lines.items() if count > 300} == {}


def test_platform_stays_the_standard_library():
    assert not (REPOSITORY / "platform" / "__init__.py").exists()
    assert not (REPOSITORY / "platform" / "platform.py").exists()
    assert platform.python_implementation()


def test_jobs_are_thin_and_shadow_no_module():
    jobs = sorted((REPOSITORY / "jobs").glob("*.py"))
    assert jobs
    for job in jobs:
        text = job.read_text()
        assert len(text.splitlines()) <= 40
        assert f"python jobs/{job.name} sweeps/" in text, "opens with the command that runs it"
        assert job.stem not in {"evaluate", "datasets", "ray", "mlflow", "profile", "platform", "torch", "kvpress"}


@pytest.mark.parametrize("path", SPECS, ids=lambda p: p.name)
def test_every_spec_validates(path):
    assert load(path).name


def test_no_machine_paths_in_specs():
    for path in SPECS:
        text = yaml.safe_dump(yaml.safe_load(path.read_text()))
        assert not any(word in text for word in ("/home/", "/root/", "/tmp/"))


@pytest.mark.model
@pytest.mark.parametrize("path", [p for p in SPECS if p.name != "base.yaml"], ids=lambda p: p.name)
def test_every_spec_dry_runs(path, tmp_path, capsys):
    if (model := load(path).model.id) in MADE_BY and model not in shipped_models():
        pytest.skip(f"the weights of {model} are not trained yet")
    few = "grid.samples=2"  # a dry run makes the samples; hundreds of them take a minute
    trains_only = path.parent.name == "presets"  # what is trained, for other specs to extend
    command, said = ("distill", "  time: ") if trains_only else ("eval", "to do: ")
    assert main([command, str(path), f"run.root={tmp_path}", few, "--dry-run"]) == 0
    assert said in capsys.readouterr().err

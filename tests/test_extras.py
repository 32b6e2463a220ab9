"""Without an extra, what needs it says which one; all else works."""

import subprocess
import sys
import textwrap
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from indexmem.extras import DEPENDENCIES

# Finders that do not find these libraries: as if they were not installed, in a process of its own.
WITHOUT = """
import importlib.machinery, sys

class Blind:
    def __init__(self, finder, hidden):
        self.finder, self.hidden = finder, hidden
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in self.hidden else self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)

hidden = set({hidden!r})
sys.meta_path[:] = [Blind(finder, hidden) for finder in sys.meta_path]
"""
SMOKE = Path(__file__).parents[1] / "sweeps" / "smoke.yaml"
RAY = ("ray", "optuna", "cronsim")
MLFLOW = ("mlflow", "sqlalchemy")
REPORT = ("plotly", "kaleido")
BENCHMARKS = ("wonderwords", "rouge", "jieba", "math_verify")


def run(hidden, code):
    script = WITHOUT.format(hidden=list(hidden)) + textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)


NEEDS = {
    "ray": (
        RAY,
        *("indexmem.cluster.connection", "indexmem.sweep.plan", "indexmem.evaluate.crew", "indexmem.distill.train"),
        "indexmem.progress.ray_metrics",
    ),
    "mlflow": (MLFLOW, "indexmem.tracking.mlflow_sink"),
    "report": (REPORT, "indexmem.report.html"),
}


@pytest.mark.parametrize("extra", NEEDS)
def test_an_import_names_the_extra(extra):
    hidden, *modules = NEEDS[extra]
    done = run(hidden, f"""
        from importlib import import_module
        for module in {modules}:
            try:
                import_module(module)
            except ImportError as error:
                print(type(error).__name__, error)
    """)  # fmt: skip
    said = done.stdout.splitlines()
    assert len(said) == len(modules), done.stderr
    assert all(line.startswith("MissingExtra ") and f"pip install 'indexmem[{extra}]'" in line for line in said)


def test_a_job_on_bare_nodes_says_how_to_bring_what_they_lack():
    """A node of Ray's own image has Ray and what Ray needs."""
    code = f"""
        import os, sys
        from indexmem.cli import main
        codes = [main(["eval", {str(SMOKE)!r}])]
        os.environ["RAY_JOB_CONFIG_JSON_ENV_VAR"] = "{{}}"
        codes += [main(["eval", {str(SMOKE)!r}]), main(["sync", {str(SMOKE)!r}])]
        assert codes == [2, 2, 2], codes
    """
    done = run(("torch", "transformers", "kvpress", "mlflow"), code)
    assert done.returncode == 0, done.stderr
    here, job, extra = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "Not installed: " in here and "--install" not in here
    assert job.endswith(" on the nodes, or send the job again so that it brings them: indexmem submit … --install uv")
    assert extra.endswith("--install uv") and "Traceback" not in done.stderr


def test_what_the_package_needs_is_known_by_the_names_that_it_imports():
    needed = {Requirement(text).name for text in requires("indexmem") if "extra ==" not in text}
    called = {"yaml": "pyyaml", "huggingface_hub": "huggingface-hub"}
    assert {called.get(name, name) for name in DEPENDENCIES} == needed


def test_benchmarks_name_their_extra_before_anything_is_evaluated(tmp_path):
    names = ["niah_single_2", "longbench", "math500"]
    done = run(BENCHMARKS, f"""
        import indexmem
        for name in {names}:
            try:
                indexmem.run_grid("testbed", methods=["knorm"], benchmarks=[name], samples=1, length=512,
                                  settings={{"run.root": {str(tmp_path)!r}}})
            except indexmem.errors.UserError as error:
                print(error)
    """)  # fmt: skip
    said = done.stdout.splitlines()
    assert len(said) == len(names), done.stderr
    assert all("pip install 'indexmem[benchmarks]'" in line for line in said)


def test_neither_a_cache_nor_a_press_imports_ray_or_mlflow():
    done = run((), """
        from indexmem import IndexMemCache
        print({"ray", "mlflow", "indexmem.eviction.press"} & set(sys.modules))
        import indexmem.eviction.press
        print({"ray", "mlflow"} & set(sys.modules))
    """)  # fmt: skip
    assert done.stdout.split() == ["set()", "set()"], done.stderr


def test_a_command_says_it_in_a_line(tmp_path):
    done = run([*RAY, *MLFLOW], "from indexmem.cli import main; sys.exit(main(['eval', 'sweeps/smoke.yaml']))")
    assert (done.returncode, done.stderr.strip().count("\n")) == (2, 0)
    assert done.stderr.startswith("error: ")
    assert "pip install 'indexmem[" in done.stderr


def test_without_any_extra_modules_are_trained_and_a_grid_is_evaluated(tmp_path):
    (tmp_path / "own.jsonl").write_text(
        '{"context": "Key one is 111. The grass is green.", "question": "Key one?", "answer_prefix": "It is", '
        '"answers": ["111"], "metric": "contains_any"}\n'
    )
    (tmp_path / "text.txt").write_text("The lantern hangs in the harbour and grass is green. " * 100)
    done = run([*RAY, *MLFLOW, *REPORT, *BENCHMARKS], f"""
        import indexmem
        at = {str(tmp_path)!r}
        how = {{"run.root": at + "/runs", "distill.length": 64, "distill.workers": 1, "target.chunk": 32}}
        trained = indexmem.train_modules("testbed", texts=[at + "/text.txt"], steps=1, settings=how, progress=False)
        own = {{"name": "jsonl", "params": {{"path": at + "/own.jsonl"}}}}
        how = {{"run.root": at + "/runs", "grid.max_new_tokens": 2}}
        result = indexmem.run_grid("testbed", methods=["full", "indexer", "snapkv"], benchmarks=[own], ratios=[0.5],
                                   samples=1, length=256, modules=trained, settings=how, progress=False)
        print(result.table(), result.frame(), indexmem.compare(result, "indexer", "snapkv"), result.failed)
        try:
            result.report()
        except indexmem.errors.UserError as error:
            print(error)
    """)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "snapkv" in done.stdout
    assert "pip install 'indexmem[report]'" in done.stdout
    assert not any(f"import {name}" in done.stderr for name in RAY)

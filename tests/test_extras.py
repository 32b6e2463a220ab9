"""Without an extra, what needs it says which one; all else works."""

import subprocess
import sys
import textwrap

import pytest

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
RAY = ("ray", "optuna", "cronsim")
MLFLOW = ("mlflow", "sqlalchemy")
REPORT = ("plotly", "kaleido")
BENCHMARKS = ("wonderwords", "rouge", "jieba", "math_verify")


def run(hidden, code):
    script = WITHOUT.format(hidden=list(hidden)) + textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.parametrize(
    ("hidden", "module", "extra"),
    [
        (RAY, "indexmem.cluster.connection", "ray"),
        (RAY, "indexmem.sweep.plan", "ray"),
        (RAY, "indexmem.evaluate.crew", "ray"),
        (RAY, "indexmem.distill.train", "ray"),
        (RAY, "indexmem.progress.ray_metrics", "ray"),
        (MLFLOW, "indexmem.tracking.mlflow_sink", "mlflow"),
        (REPORT, "indexmem.report.html", "report"),
    ],
)
def test_an_import_names_the_extra(hidden, module, extra):
    done = run(hidden, f"import {module}")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert f"pip install 'indexmem[{extra}]'" in last
    assert last.startswith("indexmem.extras.MissingExtra")


@pytest.mark.parametrize("name", ["niah_single_2", "longbench", "math500"])
def test_a_benchmark_names_its_extra_before_anything_is_evaluated(name, tmp_path):
    done = run(BENCHMARKS, f"""
        import indexmem
        indexmem.run_grid("testbed", methods=["knorm"], benchmarks=[{name!r}], samples=1, length=512,
                          settings={{"run.root": {str(tmp_path)!r}}})
    """)  # fmt: skip
    assert "pip install 'indexmem[benchmarks]'" in done.stderr.strip().splitlines()[-1]


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

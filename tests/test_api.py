"""The Python API: the same rows, checks and numbers as the commands, in this process."""

import html
import json
import re
from pathlib import Path

import pytest

import indexmem
from indexmem.cli import main
from indexmem.config.spec import home
from indexmem.errors import UserError
from indexmem.results.summary import MEAN, summarise

METHODS = ["full", "keydiff", {"name": "snapkv", "params": {"window_size": 16}}]
SNAPKV = "snapkv(window_size=16)"


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "own.jsonl"
    rows = [
        {"context": f"Key {n} is {n}{n}{n}. " + "The grass is green. " * 20, "question": f"What is key {n}?",
         "answer_prefix": "It is", "answers": [f"{n}{n}{n}"], "metric": "contains_any"}
        for n in range(3)
    ]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, rows)))
    return {"name": "jsonl", "params": {"path": str(path), "name": "own"}}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(tmp_path_factory.mktemp("runs"))


def grid(questions, root, **changes):
    arguments = {"methods": METHODS, "benchmarks": [questions], "ratios": [0.5], "samples": 3, "length": 256}
    settings = {"run.root": root, "grid.max_new_tokens": 4, "tracking.enabled": False}
    return indexmem.run_grid("testbed", settings=settings, progress=False, **(arguments | changes))


@pytest.fixture(scope="module")
def result(questions, root):
    return grid(questions, root)


def test_every_cell_has_a_row_for_every_sample(result):
    assert result.rows.num_rows == 3 * 3
    assert result.failed == 0
    assert set(result.rows["method"].to_pylist()) == {"full", "keydiff", SNAPKV}


def test_what_is_stored_is_not_computed_again(result, questions, root, monkeypatch):
    monkeypatch.setattr(
        "indexmem.evaluate.cell.CellEvaluator.load", lambda *_: pytest.fail("the model is loaded again")
    )
    assert grid(questions, root).rows.equals(result.rows)


def test_on_ray_what_is_to_be_done_is_planned_once(result, questions, root, monkeypatch):
    monkeypatch.setattr("indexmem.commands.evaluate.plan", lambda *_, **__: pytest.fail("planned again"))
    assert grid(questions, root, on_ray=True).rows.equals(result.rows)


@pytest.fixture
def own_home(tmp_path, monkeypatch):
    """Results of its own, and the texts that are here already."""
    assets = home() / "assets"
    assets.mkdir(parents=True, exist_ok=True)
    (tmp_path / "assets").symlink_to(assets)
    monkeypatch.setenv("INDEXMEM_HOME", str(tmp_path))
    return tmp_path


def test_the_readmes_snippet_runs(own_home, capsys):
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    found = re.findall(r"```python\n(.*?)```", readme, flags=re.DOTALL)
    (snippet,) = (snippet for snippet in found if "run_grid" in snippet)
    exec(snippet.replace("samples=4", "samples=1"), {})
    printed = capsys.readouterr().out
    assert "keydiff" in printed
    assert "difference" in printed
    assert (own_home / "runs" / "reports" / "experiment.html").is_file()


def test_a_command_finds_the_same_rows(result, root, tmp_path, capsys):
    spec = tmp_path / "same.yaml"
    spec.write_text(json.dumps(result.experiment.model_dump(mode="json", exclude_unset=True)))
    assert main(["eval", str(spec), "--dry-run"]) == 0
    assert "to do: 0 of 9 rows" in capsys.readouterr().err


def test_table_and_frame_say_what_the_summary_says(result):
    summary = summarise(result.rows)
    table, frame = result.table(), result.frame()
    assert all(name in table for name in ("full cache", "keydiff", SNAPKV))
    assert repr(result) == table
    assert html.unescape(result._repr_html_()) == f"<pre>{table}</pre>"
    for (method, budget, benchmark), cell in summary.cells.items():
        line = frame[(frame.method == method) & (frame.budget == str(budget)) & (frame.benchmark == benchmark)]
        assert line["mean"].item() == pytest.approx(cell.mean, abs=1e-6)
        assert line["n"].item() == cell.n


def test_the_report_is_a_file(result):
    assert "keydiff" in result.report().read_text(encoding="utf-8")


def test_another_grid_of_the_name_leaves_the_report_alone(result, questions, root):
    first = result.report()
    before = first.read_bytes()
    other = grid(questions, root, methods=["full", "keydiff"]).report()
    assert (first.name, other.stem.startswith("experiment-")) == ("experiment.html", True)
    assert first.read_bytes() == before
    assert result.report() == first
    index = (first.parent / "index.html").read_text(encoding="utf-8")
    assert all(f'href="{page.name}"' in index for page in (first, other))


def test_a_comparison_and_its_reverse(result):
    forward, backward = indexmem.compare(result, "keydiff", SNAPKV), indexmem.compare(result, SNAPKV, "keydiff")
    assert forward.benchmark.tolist() == [MEAN, "own"]
    assert forward.difference.tolist() == pytest.approx((-backward.difference).tolist())
    assert forward.low.tolist() == pytest.approx((-backward.high).tolist())
    means = result.frame().set_index(["method", "benchmark"])["mean"]
    assert forward.difference[1] == pytest.approx(100 * (means["keydiff", "own"] - means[SNAPKV, "own"]), abs=1e-4)


def test_a_budget_given_alone_is_the_only_one(questions, root):
    only = grid(questions, root, ratios=None, budgets=["40 tokens"], methods=["keydiff"])
    assert set(only.rows["budget"].to_pylist()) == {"40 tokens"}


def test_modules_trained_here_are_evaluated_here(questions, root, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("The lantern hangs in the harbour and grass is green. " * 200)
    how = {"distill.length": 64, "distill.workers": 1, "target.chunk": 32, "run.root": root}
    trained = indexmem.train_modules("testbed", texts=[str(text)], steps=2, settings=how, progress=False)
    assert trained.history["step"].tolist() == [0, 1]
    again = indexmem.train_modules("testbed", texts=[str(text)], steps=2, settings=how, progress=False)
    assert again.folder == trained.folder
    rows = grid(questions, root, methods=["indexer"], modules=trained).rows
    assert set(rows["status"].to_pylist()) == {"ok"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"methods": ["keydif"]}, "Did you mean 'keydiff'"),
        ({"ratios": [1.5]}, "grid.ratios"),
        ({"methods": ["indexer"], "modules": "nowhere"}, "nowhere"),
        ({"samples": 0}, "grid.samples"),
    ],
)
def test_mistakes_are_told_before_anything_runs(changes, said, questions, root):
    with pytest.raises(UserError, match=said):
        grid(questions, root, **changes)


def test_comparing_what_was_not_evaluated_is_a_mistake(result):
    with pytest.raises(UserError, match="no method 'tova'"):
        indexmem.compare(result, "tova", "keydiff")


def test_steps_keep_the_shape_of_the_schedule():
    from indexmem.config.learning_rate import LearningRateConfig

    schedule = LearningRateConfig(warmup=10, stable=60, decay=30)
    assert schedule.in_steps(50) == {"warmup": 5, "stable": 30, "decay": 15}
    assert sum(schedule.in_steps(7).values()) == 7
    assert LearningRateConfig(kind="constant", warmup=0, stable=9).in_steps(4) == {"warmup": 0, "stable": 4, "decay": 0}

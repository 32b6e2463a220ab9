"""One night from lock to verdict, published to a real MLflow, with steps that store made-up rows."""

import json
import os
import signal
from pathlib import Path

import pytest
import yaml
from mlflow import MlflowClient
from night_rows import date, fill, nightly_spec, right
from tiny_models import save_tiny_model
from tiny_tokenizers import TEXT

from indexmem.cli import main
from indexmem.commands import nightly_step
from indexmem.commands.nightly import BUSY, run_night
from indexmem.config.load import load
from indexmem.distill.history import History
from indexmem.distill.runs import DistillRun
from indexmem.errors import UserError
from indexmem.locks.leases import Leases
from indexmem.nightly.night import Nights
from indexmem.tracking.mlflow_sink import MlflowSink
from indexmem.tracking.mlflow_store import open_store


@pytest.fixture(scope="module")
def database(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    open_store(f"sqlite:///{path}", path.parent / "artifacts")
    return f"sqlite:///{path}"


@pytest.fixture
def spec(tmp_path, database, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    spec = nightly_spec(tmp_path)
    tracking = spec.tracking.model_copy(update={"uri": database, "experiment": tmp_path.name})
    return spec.model_copy(update={"tracking": tracking})


class Suite:
    """Stands for the suite's verbs: stores the night's rows and ends with `code`."""

    def __init__(self, spec, number: int, score=right, code: int = 0) -> None:
        self.night, self.score, self.code, self.calls = Nights.of(spec).night(date(number)), score, code, 0

    def __call__(self, step, limits):
        self.calls += 1
        fill(self.night, self.score)
        return self.code


def night(spec, number: int, **how) -> tuple[int, Suite]:
    suite = Suite(spec, number, **how)
    return run_night(spec, date(number), execute=suite), suite


def published(spec) -> dict[str, dict]:
    client = MlflowClient(tracking_uri=spec.tracking.uri)
    experiment = client.get_experiment_by_name(f"{spec.tracking.experiment}/nightly")
    runs = client.search_runs([experiment.experiment_id])
    assert len({run.info.run_name for run in runs}) == len(runs), "a night is there once"
    return {run.info.run_name: run.to_dictionary() for run in runs}


def test_nights_run_once_and_say_what_moved(spec, capsys):
    assert [night(spec, number)[0] for number in (0, 1)] == [0, 0]
    damage = lambda method, sample: right(method, sample) * (method != "knorm")  # noqa: E731
    code, suite = night(spec, 2, score=damage)
    assert (code, suite.calls) == (3, 1)
    assert "Regression: knorm (tiny) -73.3 points." in capsys.readouterr().out

    before = published(spec)
    assert list(before) == ["nightly 2026-11-03", "nightly 2026-11-02", "nightly 2026-11-01"]
    last = before["nightly 2026-11-03"]["data"]
    assert (last["tags"]["status"], last["metrics"]["regressions"]) == ("regression", 2)
    assert last["metrics"]["score/tiny/knorm"] == 0
    assert "### Worse" in last["tags"]["mlflow.note.content"]
    artifacts = Path(before["nightly 2026-11-03"]["info"]["artifact_uri"].removeprefix("file://"))
    assert json.loads((artifacts / "verdict.json").read_text())["regressions"][0]["method"] == "knorm"
    assert "Regression" in (artifacts / "report.html").read_text()

    code, suite = night(spec, 2, score=damage)
    assert (code, suite.calls) == (3, 0)
    assert published(spec) == before


def test_the_page_is_named_by_the_address_that_serves_it(spec, capsys, monkeypatch):
    """That of the setting, else the run on an MLflow server, else a path, which works on this machine alone."""
    page = Nights.of(spec).night(date(0)).page
    served = spec.model_copy(update={"url": "https://nights.example/"})
    run = "http://mlflow.example/#/experiments/1/runs/2"
    for publisher, each, expected in (
        (None, spec, str(page)),
        (run, spec, run),
        (run, served, "https://nights.example/2026-11-01/report.html"),
    ):
        if publisher:
            monkeypatch.setattr(MlflowSink, "publish_night", lambda *_, **__: publisher)  # noqa: B023
        assert night(each, 0)[0] == 0
        assert f"Page: {expected}\n" in capsys.readouterr().out


def test_a_training_leaves_its_losses_for_the_verdict(spec, tmp_path, monkeypatch):
    """Those of a history as trainings write it, by the step's own process."""
    save_tiny_model(tmp_path / "model")
    (tmp_path / "text.txt").write_text(TEXT)
    training = {"texts": [str(tmp_path / "text.txt")], "length": 96}
    raw = {"name": "tiny", "model": {"id": str(tmp_path / "model")}, "distill": training}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(raw))
    suite = spec.suites[0].model_copy(update={"verbs": ("distill", "eval")})
    evaluate = Suite(spec, 0)

    def train(arguments):
        rows = [{"step": number, "loss": 1.0 - 0.01 * number, "loss_memory": 2.0} for number in range(20)]
        History(DistillRun.of(load(arguments[1])).history).write(rows)
        return 0

    def execute(step, limits):
        return evaluate(step, limits) if step.verb == "eval" else nightly_step.run_alone([step.verb, str(step.spec)])

    monkeypatch.setattr(nightly_step, "main", train)
    assert run_night(spec.model_copy(update={"suites": (suite,)}), date(0), execute=execute) == 0
    (outcome,) = evaluate.night.verdict().suites
    assert {loss.module: round(loss.now, 3) for loss in outcome.losses} == {"loss indexer": 0.855, "loss memory": 2.0}


def killed(*_):
    raise KeyboardInterrupt


def test_a_night_killed_before_its_verdict_gets_it_at_the_next_start(spec, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("indexmem.commands.nightly.write_pages", killed)
        with pytest.raises(KeyboardInterrupt):
            night(spec, 0)
    assert Nights.of(spec).night(date(0)).verdict() is None
    code, suite = night(spec, 0)
    assert (code, suite.calls) == (0, 0)
    assert Nights.of(spec).night(date(0)).verdict().compared == 0


def test_a_failed_step_is_tried_again_and_the_verdict_renewed(spec):
    assert night(spec, 0, code=2)[0] == 1
    assert published(spec)["nightly 2026-11-01"]["data"]["tags"]["status"] == "failures"
    assert night(spec, 0)[0] == 0
    assert published(spec)["nightly 2026-11-01"]["data"]["tags"]["status"] == "fine"


def test_a_signal_leaves_a_night_without_a_verdict(spec):
    suite = Suite(spec, 0, code=128 + signal.SIGTERM)

    def interrupted(step, limits):
        os.kill(os.getpid(), signal.SIGTERM)
        return suite(step, limits)

    assert run_night(spec, date(0), execute=interrupted) == 128 + signal.SIGTERM
    assert Nights.of(spec).night(date(0)).verdict() is None


def test_one_process_at_a_time_and_a_crashed_one_is_no_obstacle(spec):
    nights = Nights.of(spec)
    with Leases(nights.leases) as other:
        other.claim({spec.name})
        assert night(spec, 0)[0] == BUSY
    crashed = Leases(nights.leases)
    crashed.claim({spec.name})
    (lease,) = nights.leases.glob("*.json")
    content = json.loads(lease.read_text())
    lease.write_text(json.dumps(content | {"pid": 2**22 - 1}))
    assert night(spec, 0)[0] == 0


def test_mlflow_that_is_down_costs_nothing_but_a_warning(spec):
    tracking = spec.tracking.model_copy(update={"uri": "http://127.0.0.1:9"})
    with pytest.warns(RuntimeWarning, match="Nothing is lost"):
        assert night(spec.model_copy(update={"tracking": tracking}), 0)[0] == 0
    assert night(spec, 0)[0] == 0
    assert list(published(spec)) == ["nightly 2026-11-01"]


def test_old_nights_are_forgotten_after_a_night(spec):
    kept = spec.model_copy(update={"retention": spec.retention.model_copy(update={"rows": 1, "modules": 1})})
    kept = kept.model_copy(update={"compare": kept.compare.model_copy(update={"nights": 1})})
    for number in range(3):
        assert night(kept, number)[0] == 0
    assert [each.has_rows for each in Nights.of(kept).all()] == [True, True, False]


def test_a_mistake_in_a_suite_is_found_before_any_step_and_mended(spec):
    with pytest.raises(UserError, match=r"suite 'tiny'(.|\n)*grid\.methods is empty"):
        run_night(spec, date(0))
    assert Nights.of(spec).night(date(0)).record().steps == {}
    assert not list(Nights.of(spec).folder.rglob("spec.yaml")), "read anew at the next start"
    assert night(spec, 0)[0] == 0


def test_the_command_line_checks_lists_and_plans(tmp_path, capsys):
    spec = nightly_spec(tmp_path)
    path = tmp_path / "nightly.yaml"
    path.write_text(yaml.safe_dump({"suites": [{"name": "tiny", "spec": "tiny.yaml"}], "run": {"root": str(tmp_path)}}))
    assert main(["nightly", "run", str(path), "--date", "2026-11-28", "--dry-run"]) == 0
    assert "tiny/distill: unfinished" in capsys.readouterr().err
    assert main(["nightly", "status", str(path)]) == 0
    assert "no nights yet" in capsys.readouterr().out
    for override, message in [
        ("cron=0 2,3 * * *", "due twice"),
        ("compare.levle=1", "Did you mean 'level'?"),
        ("suites=[{name: distill, spec: tiny.yaml}]", "choose another name"),
        ("suites=[{name: a, spec: tinny.yaml}]", "Did you mean"),
        ("suites=[{name: a, spec: tiny.yaml, overrides: [grid.sample=1]}]", "unknown key 'grid.sample'"),
    ]:
        assert main(["nightly", "run", str(path), override]) == 2
        assert message in capsys.readouterr().err
    assert not Nights.of(spec).folder.exists()


def test_the_shipped_spec_plans_a_night(tmp_path, capsys):
    path = Path(__file__).parents[2] / "sweeps" / "nightly.yaml"
    assert main(["nightly", "run", str(path), f"run.root={tmp_path}", "--dry-run"]) == 0
    assert "smoke/eval: unfinished" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())

"""A finished pre-training in MLflow: the command finds it trained and publishes its history."""

from mlflow import MlflowClient

from indexmem.config.load import validate_as
from indexmem.distill.history import History
from indexmem_testbed.config import PretrainingSpec
from indexmem_testbed.runs import PretrainRun
from indexmem_testbed.workflow import run_pretraining


def test_the_history_of_a_finished_run_is_published_once(tmp_path):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    settings = {"texts": ["essays-train"], "stages": [{"length": 32, "share": 1.0}], "step_tokens": 256, "steps": 3}
    raw = {"name": "tiny", "pretrain": settings, "run": {"root": str(tmp_path)}, "tracking": {"uri": uri}}
    experiment = validate_as(PretrainingSpec, raw, "test")
    run = PretrainRun.of(experiment)
    rows = [{"step": step, "loss": 3.0 - step, "lr": 0.1, "exact_needles_1024": step / 4} for step in range(3)]
    History(run.history, span=experiment.pretrain.checkpoint_every).write(rows)
    run.final.mkdir()

    assert run_pretraining(experiment) == run_pretraining(experiment) == 0
    client = MlflowClient(tracking_uri=uri)
    (found,) = client.search_runs([e.experiment_id for e in client.search_experiments()])
    assert found.info.status == "FINISHED"
    assert found.data.params["pretrain.steps"] == "3"
    for metric in ("loss", "exact_needles_1024"):
        values = [point.value for point in client.get_metric_history(found.info.run_id, metric)]
        assert values == [row[metric] for row in rows]

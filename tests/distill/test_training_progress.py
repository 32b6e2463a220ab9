"""What a training says about itself while it runs."""

import pytest

from indexmem.config.load import with_overrides
from indexmem.config.schema import Experiment
from indexmem.distill.history import by_module, recent_losses, training_status


def rows(count: int, memory_from: int = 0) -> list[dict[str, float]]:
    made = []
    for step in range(count):
        row = {"step": step, "lr": 0.1, "tokens_per_second": 200.0, "loss": 1 / (step + 1), "loss_worst_layer": 9.0}
        memory = {"loss_memory-knorm": 0.5, "loss_worst_layer_memory-knorm": 9.0}
        made.append(row | (memory if step >= memory_from else {}))
    return made


@pytest.fixture
def spec() -> Experiment:
    settings = [
        "workers=2",
        "accumulate=2",
        "length=25",
        "schedule.warmup=10",
        "schedule.stable=80",
        "schedule.decay=10",
    ]
    return with_overrides(Experiment(name="tiny"), [f"distill.{setting}" for setting in settings])


def test_before_the_first_step_it_waits(spec):
    status = training_status(spec, [])
    assert (status.done, status.total, status.rate, status.note) == (0, 100, None, "waiting for the first step")


def test_speed_and_time_left_are_those_of_the_last_steps(spec):
    history = rows(20)
    for row in history[:10]:
        row["tokens_per_second"] = 1.0
    status = training_status(spec, history)
    assert (status.done, status.tokens_per_second, status.rate) == (20, 200.0, 2.0)
    assert status.left_seconds == pytest.approx((40, 40))
    assert status.line().startswith("20/100 steps  loss indexer ")


def test_every_module_has_the_mean_of_its_last_losses():
    losses = recent_losses(rows(1000, memory_from=995))
    assert losses == {
        "loss indexer": pytest.approx(sum(1 / (n + 1) for n in range(990, 1000)) / 10),
        "loss memory-knorm": 0.5,
    }
    assert recent_losses(rows(1)) == {"loss indexer": 1.0, "loss memory-knorm": 0.5}


def test_worst_layers_are_no_module():
    assert by_module(rows(1)[0], "loss") == {"indexer": 1.0, "memory-knorm": 0.5}
    assert by_module({"grad_norm_memory-knorm": 2.0}, "grad_norm") == {"memory-knorm": 2.0}

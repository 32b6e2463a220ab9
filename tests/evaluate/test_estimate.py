"""Plans say how long and how much: from stored rows where there are any, else from a model of cost, as a range."""

import re
from dataclasses import replace

import pytest
from tiny_models import save_tiny_model
from tiny_tokenizers import TEXT

from indexmem.cli import main
from indexmem.config.load import validate, with_overrides
from indexmem.distill.estimate import training_time
from indexmem.distill.local import distill_here
from indexmem.distill.runs import DistillRun
from indexmem.evaluate.estimate import memory_sentence, time_sentence
from indexmem.evaluate.grid import plan
from indexmem.evaluate.local import evaluate_here
from indexmem.fetching import nothing_fetched
from indexmem.models.cost import layer_parameters, weight_bytes
from indexmem.models.geometry import LLAMA_31_8B, QWEN3_8B, SMOLLM2_135M
from indexmem.provenance import provenance


@pytest.fixture
def spec(tmp_path):
    save_tiny_model(tmp_path / "model")
    (tmp_path / "text.txt").write_text(TEXT)
    return validate(
        {
            "model": {"id": str(tmp_path / "model")},
            "distill": {
                "texts": [str(tmp_path / "text.txt")],
                "length": 96,
                "workers": 1,
                "schedule": {"warmup": 1, "stable": 1, "decay": 1},
            },
            "grid": {
                "methods": ["full", "knorm"],
                "ratios": [0.5],
                "benchmarks": ["niah_single_1"],
                "length": 640,
                "samples": 2,
                "haystack": str(tmp_path / "text.txt"),
                "max_new_tokens": 4,
            },
            "run": {"root": str(tmp_path / "runs")},
        },
        "test",
    )


def seconds(sentence: str) -> list[float]:
    """Of the device, as the sentence begins: 'about 1.2 CPU-minutes, ...', '3 to 20 CPU-seconds, ...'."""
    numbers, unit = re.match(r"(?:about )?([\d.,e-]+(?: to [\d.,e-]+)?) CPU-(\w+)", sentence).groups()
    size = {"hours": 3600, "minutes": 60, "seconds": 1}[unit]
    return [size * float(text.replace(",", "")) for text in numbers.split(" to ")]


def test_rows_of_the_same_model_are_gone_by_and_their_times_are_counted_as_they_are_shared(spec):
    assert "no row of this model is stored to go by" in time_sentence(spec, plan(spec))
    first = plan(spec)
    for _ in evaluate_here(spec, first, provenance()):
        pass
    rows = first.rows().to_pylist()
    more = with_overrides(spec, ["grid.samples=4", "grid.actors=2"])  # two are there, two are to do
    said = time_sentence(more, plan(more))
    assert "as 4 stored rows of this model took on CPUs" in said and "with 2 actors" in said
    per_sample = {row["sample_id"]: row["prefill_seconds"] / row["context_tokens"] for row in rows}
    least = sum(per_sample.values()) / 2 * 640 * 2  # the prefills of two samples alone
    most = least + sum(row["score_seconds"] / row["context_tokens"] * 640 + row["decode_seconds"] for row in rows)
    (found,) = seconds(said)
    assert 0.9 * least <= found <= 1.1 * most
    longer = with_overrides(spec, ["grid.length=700"])
    assert "at 640 tokens" in time_sentence(longer, plan(longer))


def test_without_rows_time_is_a_range_that_grows_with_the_work(spec):
    low, high = seconds(time_sentence(spec, plan(spec)))
    assert 0 < low < high
    twice = with_overrides(spec, ["grid.samples=4"])
    assert seconds(time_sentence(twice, plan(twice))) == pytest.approx([2 * low, 2 * high], rel=0.06)


def test_a_training_goes_by_its_own_steps_then_by_those_of_another(spec):
    run = DistillRun.of(spec)
    assert "no training of this model is stored" in training_time(spec, run)
    distill_here(spec, run)
    longer = with_overrides(spec, ["distill.schedule.stable=400"])
    said = training_time(longer, DistillRun.of(longer))
    assert f"as a training of this model took ({run.id})" in said
    tokens = 402 * 96
    speed = sorted(row["tokens_per_second"] for row in run.read_history())[1]
    assert seconds(said) == pytest.approx([tokens / speed], rel=0.06)
    assert "as its first steps took" in training_time(spec, run)


def test_what_an_actor_holds_is_compared_with_what_there_is(spec, monkeypatch):
    grid = plan(spec)
    assert "which fits the" in memory_sentence(spec, grid, here=True)
    monkeypatch.setattr("indexmem.evaluate.estimate._room", lambda gpus, cpus: (1e6, "a toy"))
    assert "too little for the model and one context" in memory_sentence(spec, grid, here=True)
    with nothing_fetched():
        large = with_overrides(
            spec, ["model.id=meta-llama/Llama-3.1-8B-Instruct", "model.dtype=bfloat16", "grid.gpus_per_actor=1"]
        )
        alone = with_overrides(large, ["grid.samples_per_batch=1", "grid.length=32768"])
        assert "It fits a GPU of 48 GiB" in memory_sentence(alone, plan(alone), here=False)
        every = with_overrides(alone, ["grid.ratios=[0.1, 0.2, 0.3]", "grid.samples_per_batch=8", "grid.length=131072"])
        assert "No GPU of 141 GiB or less holds that" in memory_sentence(every, plan(every), here=False)


SMOLLM2_TIED = replace(SMOLLM2_135M, vocab_size=SMOLLM2_135M.vocab_size // 2)  # its embeddings are one


@pytest.mark.parametrize(("geometry", "published"), [(LLAMA_31_8B, 8.03e9), (QWEN3_8B, 8.19e9), (SMOLLM2_TIED, 135e6)])
def test_parameters_are_about_those_published(geometry, published):
    assert weight_bytes(geometry, 1) == pytest.approx(published, rel=0.15)
    assert layer_parameters(geometry) < weight_bytes(geometry, 1)


def test_dry_runs_say_it(spec, tmp_path, capsys):
    path = tmp_path / "spec.yaml"
    path.write_text(spec.model_dump_json(exclude_unset=True))
    assert main(["run", str(path), "grid.methods=[full, indexer]", "--dry-run"]) == 0
    said = capsys.readouterr().err
    assert len(re.findall(r"  time: \S+ to \S+ CPU-seconds", said)) == 2
    assert said.count("  memory: an actor holds") == 1
    axes = ["sweep.axes={eviction.sinks: [1, 4]}", "sweep.objectives=[score]"]
    assert main(["sweep", str(path), *axes, "--dry-run"]) == 0
    assert "time of each of 2 evaluations:\n    " in capsys.readouterr().err

"""Several questions about one context: one prefill and one eviction for all, and the answers of single runs."""

from dataclasses import replace

import pytest
from tiny_models import tiny_backbone
from tiny_tokenizers import SENTENCES

from indexmem.benchmarks.base import Sample
from indexmem.config.budget import Budget
from indexmem.config.load import validate
from indexmem.evaluate import compress
from indexmem.evaluate.cell import CellEvaluator
from indexmem.evaluate.work import GridCell, Task, contexts_of
from indexmem.evaluate.worker import Digest

METHODS = ["full", "knorm", {"name": "snapkv", "params": {"window_size": 4}}, "kvzip", "random"]
TEXTS = [" ".join(SENTENCES[:3]), " ".join(SENTENCES[2:6])]
QUESTIONS = ["who?", "what is there to see here", "why did it happen and to whom?"]
MEASURED = ("seconds", "created_at", "decode_batch")  # what may differ between one run and several


@pytest.fixture(scope="module")
def evaluator():
    spec = validate({"eviction": {"sinks": 2}, "grid": {"methods": METHODS, "benchmarks": ["niah_single_2"]}}, "test")
    methods = {config.label: config for config in spec.grid.methods}
    return CellEvaluator.load(spec, methods, None, {"git_commit": "", "versions": {}, "host": ""}, tiny_backbone())


def tasks_of(evaluator) -> list[Task]:
    """Every question about both texts, one of them also without its chat template; the last in half of the cells."""
    cells = tuple(
        GridCell(f"{config.name} {ratio}", config, Budget.of_ratio(ratio), "niah_single_2", "b", "")
        for config in evaluator.experiment.grid.methods
        for ratio in ((0.0,) if config.name == "full" else (0.3, 0.8))
    )
    samples = [
        Sample(f"s/{text}-{number}", "niah_single_2", TEXTS[text], question, "", ("x",), 6 + number)
        for text in range(2)
        for number, question in enumerate(QUESTIONS)
    ]
    samples.append(replace(samples[0], id="s/bare", chat=False))
    return [Task(sample, cells[:5] if number == 2 else cells) for number, sample in enumerate(samples)]


def test_answers_equal_the_single_runs_and_a_context_is_prefilled_once(evaluator, monkeypatch):
    tasks = tasks_of(evaluator)
    lengths = []
    prefill = compress.prefill
    monkeypatch.setattr(compress, "prefill", lambda *given: (lengths.append(len(given[1])), prefill(*given))[1])
    together, _ = evaluator.evaluate(tasks)
    assert len(lengths) == 3, "two texts, and one of them once more without its template"
    single = [row for task in tasks for row in evaluator.evaluate([task])[0]]
    assert len(lengths) == 3 + len(tasks)
    key = lambda row: (row["sample_id"], row["cell_id"])  # noqa: E731
    plain = lambda row: {name: row[name] for name in row if not name.endswith(MEASURED)}  # noqa: E731
    assert [plain(row) for row in sorted(together, key=key)] == [plain(row) for row in sorted(single, key=key)]
    assert len({row["prediction"] for row in together}) > len(tasks), "else equality shows nothing"
    assert {row["status"] for row in together} == {"ok"}


def test_prefilled_tokens_count_a_context_once(evaluator):
    tasks = tasks_of(evaluator)[:3]
    rows, _ = evaluator.evaluate(tasks)
    digest = Digest.of(rows, "niah_single_2", tasks[0].cells)
    assert digest.prefilled_tokens == rows[0]["context_tokens"]


def test_contexts_are_told_by_text_template_and_repeat():
    one = Sample("s/0", "b", "text", "what?", "", ("x",), 1)
    samples = [one, replace(one, question="who?"), replace(one, context="more"), replace(one, chat=False), one]
    assert contexts_of(samples) == [0, 0, 1, 2, 0]
    assert contexts_of([one, replace(one, repeat=1)]) == [0, 1]

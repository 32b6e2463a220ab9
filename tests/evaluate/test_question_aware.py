"""The question-aware protocol: the question is in the cache that is compressed, and rows are never taken for others."""

from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from report_rows import make_row
from tiny_models import tiny_backbone
from tiny_tokenizers import SENTENCES

from indexmem.benchmarks.base import Sample
from indexmem.config.budget import Budget
from indexmem.config.load import validate
from indexmem.errors import UserError
from indexmem.evaluate import compress
from indexmem.evaluate.cell import CellEvaluator
from indexmem.evaluate.grid import plan
from indexmem.evaluate.work import GridCell, Task, contexts_of
from indexmem.evaluate.worker import Digest
from indexmem.models.prompt import PromptFormat, encode
from indexmem.results.schema import ROW_SCHEMA
from indexmem.results.summary import summarise
from indexmem.results.tables import comparison_table

WINDOW = 4
METHODS = ["full", {"name": "snapkv", "params": {"window_size": WINDOW}}, "knorm", "kvzip"]
PROTOCOLS = ({"protocol": "agnostic"}, {"protocol": "question_aware"})
CONTEXT = " ".join(SENTENCES[:4])


@pytest.fixture(scope="module")
def evaluator():
    spec = validate({"eviction": {"sinks": 0}, "grid": {"methods": METHODS, "benchmarks": ["niah_single_2"]}}, "test")
    methods = {config.label: config for config in spec.grid.methods}
    return CellEvaluator.load(spec, methods, None, {"git_commit": "", "versions": {}, "host": ""}, tiny_backbone())


def task_of(evaluator, sample: Sample, ratio: float = 0.8) -> Task:
    cells = tuple(
        GridCell(config.name, config, Budget.of_ratio(0 if config.name == "full" else ratio), sample.benchmark, "b", "")
        for config in evaluator.experiment.grid.methods
    )
    return Task(sample, cells)


def asked(question: str, answer_prefix: str = "", number: int = 0, **changes) -> Sample:
    sample = Sample(f"s/{number}", "niah_single_2", CONTEXT, question, answer_prefix, ("x",), 8)
    return replace(sample, question_aware=True, **changes)


def answers(evaluator, tasks) -> dict:
    rows, _ = evaluator.evaluate(tasks)
    assert {row["status"] for row in rows} == {"ok"}
    return {(row["sample_id"], row["method"].partition("(")[0]): row for row in rows}


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    question=st.sampled_from([" who?", " what is there", " why did it happen again and to whom?"]),
    answer_prefix=st.sampled_from(["", " It is", "x"]),
    chat=st.booleans(),
)
def test_the_full_cache_answers_as_in_the_other_protocol(evaluator, question, answer_prefix, chat):
    aware = asked(question, answer_prefix, chat=chat)
    rows = answers(evaluator, [task_of(evaluator, aware)])
    before = answers(evaluator, [task_of(evaluator, replace(aware, question_aware=False))])
    own, other = rows["s/0", "full"], before["s/0", "full"]
    assert own["prediction"] == other["prediction"]
    assert own["context_tokens"] + 1 == other["context_tokens"] + other["question_tokens"]
    assert (own["question_tokens"], own["question_aware"], other["question_aware"]) == (1, True, False)
    for row in (rows["s/0", "snapkv"], rows["s/0", "knorm"]):  # the budget is one of the prompt
        assert row["kept_min"] == row["kept_max"] == int(row["context_tokens"] * (1 - 0.8) + 1e-9)


def test_a_prefill_holds_the_prompt_and_each_question_has_its_own(evaluator, monkeypatch):
    tasks = [task_of(evaluator, asked(question, number=n)) for n, question in enumerate((" who?", " where?", " who?"))]
    read, done = [], []
    prefill, cells = compress.prefill, compress.compress_cells
    monkeypatch.setattr(compress, "prefill", lambda *given: (read.append(given[1]), prefill(*given))[1])
    monkeypatch.setattr(
        "indexmem.evaluate.cell.compress_cells", lambda *given: (done.append(cells(*given)), done[-1])[1]
    )
    rows, _ = evaluator.evaluate(tasks)
    tokenizer = evaluator.backbone.tokenizer
    prompt = PromptFormat.of(tokenizer)
    prompts = [
        encode(tokenizer, prompt.context(CONTEXT)) + encode(tokenizer, prompt.question(task.sample.question, ""))
        for task in tasks[:2]
    ]
    assert read == [ids[:-1] for ids in prompts], "one for each different question"
    kept_HK = done[0].ready["snapkv"].cache.kept_HK[0]
    assert set(range(len(read[0]) - WINDOW, len(read[0]))) <= set(kept_HK[0].tolist()), (
        "SnapKV's window is the question"
    )
    assert contexts_of([task.sample for task in tasks]) == [0, 1, 0]
    digest = Digest.of(rows, "niah_single_2", tasks[0].cells)
    assert digest.prefilled_tokens == sum(map(len, (read[0], read[1], read[0])))
    assert len({row["group"] for row in rows}) == 1, "in statistics they are still of one text"


def spec_of(tmp_path, benchmark="niah_questions", **changes):
    grid = {"methods": ["full", "knorm"], "benchmarks": [benchmark], "ratios": [0.5], "length": 1024, "samples": 2}
    return validate({"model": {"id": "testbed"}, "grid": grid | changes, "run": {"root": str(tmp_path)}}, "test")


@pytest.mark.model
def test_cells_of_the_protocols_are_never_each_others(tmp_path):
    default, agnostic, aware = (plan(spec_of(tmp_path, **said)) for said in ({}, *PROTOCOLS))
    assert default.cell_ids == agnostic.cell_ids, "rows from before there was a choice still count"
    assert not set(agnostic.cell_ids) & set(aware.cell_ids)
    assert [sample.question_aware for sample in aware.samples["niah_questions"]] == [True, True]
    assert [replace(sample, question_aware=False) for sample in aware.samples["niah_questions"]] == list(
        agnostic.samples["niah_questions"]
    )
    assert (agnostic.prefills(agnostic.missing()), aware.prefills(aware.missing())) == (1, 2)


@pytest.mark.model
def test_conversations_are_refused(tmp_path):
    benchmark = {"name": "niah_questions", "params": {"questions": 2, "turns": True}}
    with pytest.raises(UserError, match="niah_turns/0 is a conversation"):
        plan(spec_of(tmp_path, benchmark, **PROTOCOLS[1]))


def table_of(*protocols: bool):
    rows = [
        make_row(method, budget, "niah", index, 1.0, question_aware=aware, cell_id=f"{method}{aware}")
        for aware, (method, budget) in zip(protocols, (("full", 0.0), ("knorm", 0.5)))
        for index in range(3)
    ]
    return pa.Table.from_pylist(rows, schema=ROW_SCHEMA)


def test_protocols_are_not_summarised_together_and_the_table_says_which():
    with pytest.raises(UserError, match="Rows of both protocols are mixed"):
        summarise(table_of(False, True))
    assert "Question-aware" not in comparison_table(table_of(False, False))
    assert "Question-aware: each question was in the cache" in comparison_table(table_of(True, True))

"""RULER samples that others made: the layout of simonjegou/ruler from local files."""

from __future__ import annotations

import json

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_tokenizers import TEXT, tiny_tokenizer

from indexmem.benchmarks.base import BuildContext, build_hash
from indexmem.benchmarks.registry import make_benchmarks
from indexmem.config.schema import BenchmarkConfig
from indexmem.errors import UserError

TASKS = [
    *("niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2", "niah_multikey_3"),
    *("niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe", "qa_1", "qa_2"),
]
BUILD = BuildContext(tokenizer=tiny_tokenizer("words"), length=4096, seed=1, haystack=TEXT)


def row(task: str, number: int = 0) -> dict:
    return {
        "context": f"{task} context {number}\n",
        "question": "What?",
        "answer_prefix": "Answer:",
        "answer": ["red fox", "blue hen"],
        "task": task,
        "max_new_tokens": 50,
    }


ROWS = [row(task, number) for number in range(3) for task in TASKS]


def made(path, **params):
    return make_benchmarks([BenchmarkConfig(name="ruler_dataset", params={"path": str(path), **params})])


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "4096").mkdir()
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "4096" / "test-00000.parquet")
    (tmp_path / "8192").mkdir()
    pq.write_table(pa.Table.from_pylist([row(task, 9) for task in TASKS]), tmp_path / "8192" / "test-00000.parquet")
    return tmp_path


def test_the_tasks_are_read_as_they_are_cut(folder):
    tasks = made(folder)
    assert [task.task for task in tasks] == TASKS
    assert {task.protocol for task in tasks} == {"kvpress"}
    samples = list(tasks[8].samples(2, BUILD))
    assert [sample.id for sample in samples] == ["ruler_dataset_vt/0", "ruler_dataset_vt/1"]
    assert samples[1].context == "vt context 1\n"
    assert (samples[1].question, samples[1].answer_prefix, samples[1].max_new_tokens) == ("What?", "Answer:", 50)
    assert samples[1].references == ("red fox", "blue hen")
    assert len(list(tasks[8].samples(10, BUILD))) == 3


def test_the_length_names_a_folder(folder):
    assert next(iter(made(folder, length=8192)[0].samples(1, BUILD))).context == "niah_single_1 context 9\n"


def test_a_file_is_read_as_well(folder, tmp_path):
    lines = tmp_path / "rows.jsonl"
    lines.write_text("\n".join(map(json.dumps, ROWS)))
    by_lines, by_parquet = (made(path)[0] for path in (lines, folder / "4096" / "test-00000.parquet"))
    assert list(by_lines.samples(3, BUILD)) == list(by_parquet.samples(3, BUILD))
    assert build_hash(by_lines, BUILD) == build_hash(by_parquet, BUILD) != build_hash(made(folder)[1], BUILD)


def test_answers_are_scored_as_kvpress_does(folder):
    tasks = {task.task: task for task in made(folder)}
    (sample,) = tasks["vt"].samples(1, BUILD)
    assert tasks["vt"].score("a RED\n fox", sample) == 0.5, "a deleted line break"
    assert tasks["qa_1"].score("the blue hen", sample) == 1.0
    assert tasks["cwe"].score("the blue hen", sample) == 0.5


def test_what_is_missing_is_named(folder, tmp_path):
    few = tmp_path / "few.parquet"
    pq.write_table(pa.Table.from_pylist([{"context": "c", "question": "q"}]), few)
    with pytest.raises(
        UserError,
        match=r"row 1: the field 'answer_prefix' is missing. Expected: context .*max_new",
    ):
        list(made(few)[0].samples(1, BUILD))
    one = tmp_path / "one.parquet"
    pq.write_table(pa.Table.from_pylist([row("vt")]), one)
    with pytest.raises(UserError, match=r"no rows of task 'niah_single_1'\. Its tasks: vt"):
        list(made(one)[0].samples(1, BUILD))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"holds no \.parquet or \.jsonl file"):
        list(made(tmp_path / "empty")[0].samples(1, BUILD))
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 and then nothing")
    with pytest.raises(UserError, match="cannot be read"):
        list(made(broken)[0].samples(1, BUILD))


def test_a_bad_line_is_named(tmp_path):
    lines = tmp_path / "rows.jsonl"
    for bad, complaint in (
        (row("vt") | {"answer": ["\ud83d"]}, "half a character"),
        (row("vt") | {"context": None}, "'context' must be text, got None"),
    ):
        lines.write_text("\n".join(map(json.dumps, [*ROWS, bad])))
        with pytest.raises(UserError, match=rf"rows\.jsonl, line {len(ROWS) + 1}: .*{complaint}"):
            list(made(lines)[0].samples(1, BUILD))


def test_without_the_hub_the_error_says_what_else_there_is(monkeypatch):
    def unreachable(*_, **__):
        raise ConnectionError("Couldn't reach the Hub\nwith details")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(UserError, match=r"'simonjegou/ruler' \(4096\) .*: Couldn't reach the Hub Give path="):
        list(make_benchmarks([BenchmarkConfig(name="ruler_dataset")])[0].samples(1, BUILD))

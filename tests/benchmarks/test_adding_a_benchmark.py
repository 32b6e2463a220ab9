"""The code of docs/adding_a_benchmark.md, run as it stands."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tiny_tokenizers import KINDS, TEXT, tiny_tokenizer

from indexmem.benchmarks.base import BuildContext, build_hash
from indexmem.benchmarks.own.metrics import METRICS
from indexmem.benchmarks.registry import make_benchmarks
from indexmem.config.schema import BenchmarkConfig
from indexmem.errors import UserError

PAGE = (Path(__file__).parents[2] / "docs" / "adding_a_benchmark.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def code():
    module = ModuleType("lockers")
    sys.modules["lockers"] = module  # dataclasses look their module up
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block, vars(module))
    yield vars(module)
    del sys.modules["lockers"]


def build(kind: str = "byte_level", length: int = 600) -> BuildContext:
    return BuildContext(tokenizer=tiny_tokenizer(kind), length=length, seed=1, haystack=TEXT)


@pytest.mark.parametrize("kind", KINDS)
def test_its_own_test_passes(code, kind):
    code["test_prompts_fit_and_hold_the_answer"](build(kind))


def test_it_works_from_a_file(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "lockers.py").write_text("".join(blocks[:2]))
    name = f"{tmp_path}/lockers.py:lockers"
    (benchmark,) = make_benchmarks([BenchmarkConfig(name=name, params={"first": 7})])
    first, *_ = benchmark.samples(3, build())
    assert first.context.startswith("Locker 7 holds ")
    assert list(benchmark.samples(1, build())) == [first]
    with pytest.raises(Exception, match="set it 100 higher"):
        list(benchmark.samples(1, build(length=30)))
    with pytest.raises(UserError, match=r"'lockers.py:lockers' cannot take these params: .*Settings: first: int = 1"):
        make_benchmarks([BenchmarkConfig(name=name, params={"last": 7})])
    before = build_hash(benchmark, build())
    (tmp_path / "lockers.py").write_text("".join(blocks[:2]).replace("a violin", "a cello"))
    (edited,) = make_benchmarks([BenchmarkConfig(name=name, params={"first": 7})])
    assert build_hash(edited, build()) != before


def test_its_class_does_without_a_factory(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "lockers.py").write_text(f"from __future__ import annotations\n{blocks[0]}")
    name = f"{tmp_path}/lockers.py:Lockers"
    (benchmark,) = make_benchmarks([BenchmarkConfig(name=name, params={"first": 7, "name": "lockers"})])
    (sample,) = benchmark.samples(1, build())
    assert sample.context.startswith("Locker 7 holds ")
    assert benchmark.code
    with pytest.raises(
        UserError, match=r"first: Input should be a valid integer.*Settings: name: str, version: int = 1"
    ):
        make_benchmarks([BenchmarkConfig(name=name, params={"first": "x", "name": "lockers"})])
    with pytest.raises(UserError, match="code: Unexpected keyword argument"):
        make_benchmarks([BenchmarkConfig(name=name, params={"first": 7, "name": "lockers", "code": "mine"})])


def test_the_example_lines_are_good_ones(tmp_path):
    lines = re.findall(r"```json\n(.*?)\n```", PAGE, re.DOTALL)
    (tmp_path / "mine.jsonl").write_text("\n".join(lines))
    config = BenchmarkConfig(name="jsonl", params={"path": str(tmp_path / "mine.jsonl")})
    (benchmark,) = make_benchmarks([config])
    plain, where, what, likely, choice = benchmark.samples(5, build())
    assert benchmark.score(f"It hangs {plain.references[0]}.", plain) == 1.0
    assert where.own_group == what.own_group != plain.own_group
    assert [benchmark.score(option, likely) for option in likely.options] == [0.0, 1.0]
    assert choice.labels == json.loads(lines[3])["labels"]
    assert [benchmark.score(answer, choice) for answer in ("B", "A", "red", "blue")] == [1.0, 0.0, 1.0, 0.0]


def test_the_page_names_every_metric():
    assert all(f"`{name}`" in PAGE for name in METRICS)

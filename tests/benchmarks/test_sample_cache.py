"""Samples on disk: read instead of made, and never trusted when the file is not what was written."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from tiny_tokenizers import TEXT, tiny_tokenizer

from indexmem.benchmarks import cache as cache_module
from indexmem.benchmarks.base import Benchmark, BuildContext, Sample, Turn, build_hash
from indexmem.benchmarks.cache import SampleCache
from indexmem.benchmarks.registry import get_benchmark
from indexmem.errors import UserError

BUILD = BuildContext(tokenizer=tiny_tokenizer("words"), length=600, seed=1, haystack=TEXT)


@dataclass(frozen=True, kw_only=True)
class Counting(Benchmark):
    """Notes how often its samples are made; ends after `available`."""

    made: list[int]
    available: int = 1000
    fails_at: int = 1000
    max_new_tokens: int = 8
    protocol: str = "test"

    def samples(self, count: int, build: BuildContext) -> Iterator[Sample]:
        self.made.append(count)
        for index in range(min(count, self.available)):
            if index == self.fails_at:
                raise UserError("no room")
            yield Sample(
                id=f"{self.name}/{index}",
                benchmark=self.name,
                context=f"context {index} \u2603\n",
                question="What?",
                answer_prefix="",
                references=("a", "b"),
                max_new_tokens=8,
                chat=False,
                stop=("\n",),
                turns=(Turn("And?", "So", ("c",), 4),),
                labels={"depth": 0.5},
                extra={"choices": ["x", {"y": 1}]},
            )

    def score(self, prediction: str, sample: Sample) -> float:
        return 0.0

    def ingredients(self, build: BuildContext) -> dict:
        return {}


@pytest.fixture
def counting():
    return Counting(name="counting", made=[])


@pytest.fixture
def cache(tmp_path):
    return SampleCache(tmp_path / "samples")


def read(cache, count, *benchmarks):
    builds = {benchmark.name: build_hash(benchmark, BUILD) for benchmark in benchmarks}
    return cache.samples(benchmarks, builds, count, BUILD)


def the_file(cache):
    (path,) = cache.folder.glob("*.json.gz")
    return path


def test_what_is_read_equals_what_was_made(cache, counting):
    made = read(cache, 5, counting)["counting"]
    assert read(cache, 5, counting)["counting"] == made == tuple(counting.samples(5, BUILD))
    assert counting.made == [5, 5], "once by the cache, once by this test"


def test_fewer_samples_are_a_part_of_the_file_and_more_replace_it(cache, counting):
    five = read(cache, 5, counting)["counting"]
    assert read(cache, 2, counting)["counting"] == five[:2]
    assert read(cache, 8, counting)["counting"][:5] == five
    assert len(read(cache, 8, counting)["counting"]) == 8
    assert counting.made == [5, 8]


def test_a_data_set_that_ends_is_not_read_again_for_more(cache):
    short = Counting(name="short", made=[], available=3)
    assert len(read(cache, 10, short)["short"]) == len(read(cache, 10, short)["short"]) == 3
    assert short.made == [10]


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[: len(content) // 2],
        lambda content: b"",
        lambda content: b"not gzip at all",
        lambda content: content[:60] + bytes([content[60] ^ 1]) + content[61:],
        lambda content: gzip.compress(b"[]"),
        lambda content: gzip.compress(gzip.decompress(content).replace(b'"asked"', b'"asken"')),
    ],
    ids=["cut", "empty", "other", "one bit", "another content", "a field less"],
)
def test_a_damaged_file_is_made_again(damage, cache, counting, capsys):
    good = read(cache, 5, counting)
    path = the_file(cache)
    path.write_bytes(damage(path.read_bytes()))
    assert read(cache, 5, counting) == good
    assert counting.made == [5, 5]
    assert "made again" in capsys.readouterr().err
    assert read(cache, 5, counting) == good
    assert counting.made == [5, 5]


def test_another_layout_of_samples_is_made_again(cache, counting):
    read(cache, 5, counting)
    content = json.loads(gzip.decompress(the_file(cache).read_bytes()))
    the_file(cache).write_bytes(gzip.compress(json.dumps(content | {"layout": content["layout"][1:]}).encode()))
    read(cache, 5, counting)
    assert counting.made == [5, 5]


def test_a_build_that_fails_leaves_no_file(cache):
    failing = Counting(name="failing", made=[], fails_at=3)
    for _ in range(2):
        with pytest.raises(UserError, match="no room"):
            read(cache, 5, failing)
    assert not list(cache.folder.glob("*.json.gz")) and not list(cache.folder.glob("*.partial-*"))
    assert len(read(cache, 3, failing)["failing"]) == 3


def test_long_builds_say_how_far_they_are(cache, counting, capsys, monkeypatch):
    monkeypatch.setattr(cache_module, "PROGRESS_SECONDS", 0.0)
    read(cache, 3, counting)
    assert "counting: 2 of 3 samples made" in capsys.readouterr().err


def test_large_builds_are_spread_over_processes_with_the_same_result(cache, tmp_path, monkeypatch):
    tasks = [get_benchmark("niah_single_1"), get_benchmark("niah_single_2")]
    alone = read(SampleCache(tmp_path / "alone"), 2, *tasks)
    monkeypatch.setattr(cache_module, "LARGE_BUILD", 1)
    monkeypatch.setattr(cache_module.os, "cpu_count", lambda: 2)
    assert read(cache, 2, *tasks) == alone


def test_samples_that_cannot_be_stored_are_made_all_the_same(tmp_path, counting, capsys):
    (tmp_path / "file").write_text("in the way")
    cache = SampleCache(tmp_path / "file" / "samples")
    for _ in range(2):
        assert len(cache.samples([counting], {"counting": "h"}, 3, BUILD)["counting"]) == 3
    assert counting.made == [3, 3], "made once a call, whatever cannot be written"
    assert "the samples of counting are not kept for later runs: Not a directory" in capsys.readouterr().err


def test_what_making_samples_raises_is_not_hidden(tmp_path):
    (tmp_path / "file").write_text("in the way")
    failing = Counting(name="failing", made=[], fails_at=1)
    with pytest.raises(UserError, match="no room"):
        SampleCache(tmp_path / "file" / "samples").samples([failing], {"failing": "h"}, 3, BUILD)
    assert failing.made == [3]

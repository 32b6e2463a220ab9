"""LongBench's sets as benchmarks, and the suites that the registry knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from pydantic import PositiveInt

from indexmem.benchmarks.base import Benchmark, BuildContext, Sample
from indexmem.benchmarks.longbench.metrics import classification, classification_strict
from indexmem.benchmarks.longbench.prompts import Parts, Protocol, kvpress, official, without_end, without_middle
from indexmem.benchmarks.longbench.sets import ITEMS_E, SETS, SETS_E, USUAL_ITEMS_E, SetSpec, bucket
from indexmem.benchmarks.longbench.source import HUB, read_items
from indexmem.benchmarks.published.suite import check_sets
from indexmem.benchmarks.rows import BenchmarkRow
from indexmem.config.spec import content_hash
from indexmem.errors import UserError
from indexmem.extras import need
from indexmem.models.prompt import PromptFormat

KVPRESS_MORE_TOKENS = 20  # kvpress lets answers be longer, "to avoid cut-offs"


@dataclass(frozen=True, kw_only=True)
class LongBenchSet(Benchmark):
    """One set in one protocol. Items keep their order; `size` is the published one."""

    set: str
    path: str  # a hub id, a folder, or a copy of data.zip
    file: str  # of its items there
    protocol: Protocol
    compat: bool = True
    limit: int | None = None

    @property
    def spec(self) -> SetSpec:
        """What is published of the set."""
        return SETS[self.set]

    @property
    def size(self) -> int:
        """At most so many samples."""
        published = ITEMS_E.get(self.set, USUAL_ITEMS_E) if self.file.endswith("_e") else self.spec.items
        return published if self.limit is None else min(published, self.limit)

    def samples(self, count: int, build: BuildContext) -> Iterator[Sample]:
        """See `Benchmark`; fewer when the set ends before. Prompts longer than `build.length` allows are cut."""
        for index, row in enumerate(self._rows[:count]):
            yield self._sample(index, row, build)

    def score(self, prediction: str, sample: Sample) -> float:
        """The best of the set's metric over the references."""
        answer = prediction.lstrip("\n").split("\n")[0] if self.spec.first_line else prediction
        metric = self.spec.metric
        if metric is classification and not self.compat:
            metric = classification_strict
        return max((metric(answer, reference, sample.extra["classes"]) for reference in sample.references), default=0.0)

    def ingredients(self, build: BuildContext) -> Mapping[str, Any]:
        """The items, and what decides how they are asked and scored."""
        return {"items": content_hash(self._rows), "protocol": self.protocol, "compat": self.compat}

    @cached_property
    def _rows(self) -> Sequence[BenchmarkRow]:
        return read_items(self.path, self.file)[: self.limit]

    @property
    def _chat(self) -> bool:
        return self.protocol == "kvpress" or self.spec.chat

    def _sample(self, index: int, row: BenchmarkRow, build: BuildContext) -> Sample:
        limit = self.generation_limit(build)
        parts = self._parts(row, build, build.length - limit)
        stop = self.spec.stop if self.protocol == "official" else ()
        return Sample(
            id=f"{self.name}/{index}",
            benchmark=self.name,
            context=parts.context,
            question=parts.question,
            answer_prefix=parts.answer_prefix,
            references=tuple(row["answers"]),
            max_new_tokens=limit,
            chat=self._chat,
            stop=stop,
            min_new_tokens=1 if stop else 0,
            labels={
                "category": self.spec.category,
                "set": self.set,
                "language": self.spec.language,
                "bucket": bucket(row["length"]),
            },
            extra={"classes": row["all_classes"]},
        )

    def _parts(self, row: BenchmarkRow, build: BuildContext, room: int) -> Parts:
        cut, shorten = (official, without_middle) if self.protocol == "official" else (kvpress, without_end)
        parts = cut(self.spec.prompt, row["context"], row["input"])
        shortened = shorten(parts, build.tokenizer, PromptFormat.of(build.tokenizer, chat=self._chat), room)
        if not shortened.context:
            raise UserError(
                f"Benchmark '{self.name}' does not fit into {build.length} tokens: the question leaves no room for a "
                "context. Set grid.length higher, or lower grid.max_new_tokens."
            )
        return shortened


def _benchmark(key: str, more: bool, path: str, protocol: Protocol, compat: bool, limit: int | None) -> LongBenchSet:
    """One set; with `more` that of LongBench-E."""
    need("benchmarks", "rouge", "jieba")  # before anything is evaluated
    extra_tokens = KVPRESS_MORE_TOKENS if protocol == "kvpress" else 0
    return LongBenchSet(
        name=f"longbench_e_{key}" if more else f"longbench_{key}",
        set=key,
        path=path,
        file=f"{key}_e" if more else key,
        protocol=protocol,
        compat=compat,
        limit=limit,
        max_new_tokens=SETS[key].max_new_tokens + extra_tokens,
    )


def _suite(keys: Sequence[str], more: bool) -> Callable[..., Sequence[Benchmark]]:
    """A factory of the sets `keys`, or of one of them alone; with `more` those of LongBench-E."""

    def suite(
        *,
        path: str = HUB,
        protocol: Protocol = "official",
        sets: tuple[str, ...] = tuple(keys),
        compat: bool = True,
        limit: PositiveInt | None = None,
    ) -> Sequence[Benchmark]:
        check_sets("LongBench-E" if more else "LongBench", sets, keys, {})
        return tuple(_benchmark(key, more, path, protocol, compat, limit) for key in sets)

    return suite


LONGBENCH: Mapping[str, Callable[..., Sequence[Benchmark]]] = MappingProxyType(
    {"longbench": _suite(tuple(SETS), more=False), "longbench_e": _suite(SETS_E, more=True)}
    | {f"longbench_{key}": _suite((key,), more=False) for key in SETS}
    | {f"longbench_e_{key}": _suite((key,), more=True) for key in SETS_E}
)

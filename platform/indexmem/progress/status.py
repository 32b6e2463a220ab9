"""How far a run is: one record for the terminal and for logs. Times are in seconds, sizes in bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

MAX_TEXT = 500  # characters of one failure's reason


@dataclass(frozen=True)
class FailureNote:
    """Something that did not work, in one line each."""

    where: str  # "knorm 75% niah_single_1/3"
    reason: str  # "OutOfMemoryError: ..."

    @classmethod
    def of(cls, where: str, reason: str) -> FailureNote:
        return cls(one_line(where), one_line(reason))

    @property
    def kind(self) -> str:
        """Equal for failures of one class in one method: who has seen one has seen all."""
        return f"{self.where.partition(' ')[0]} {self.reason.partition(':')[0]}"


@dataclass(frozen=True)
class MethodScores:
    """A method's mean scores so far, one per budget; None where there is no row yet."""

    method: str
    means: tuple[float | None, ...]


@dataclass(frozen=True)
class ScoresSoFar:
    """Partial scores, method x budget: means over benchmarks of the means over their finished rows."""

    budgets: tuple[str, ...]
    methods: tuple[MethodScores, ...]  # the best first
    omitted: int = 0  # methods left out for size


@dataclass(frozen=True)
class RunStatus:
    """A run at one moment. None where nothing is known yet."""

    unit: str  # what is counted: "rows", "steps", "trials"
    total: int
    done: int = 0  # failed ones included
    failed: int = 0  # of those that this run did
    rate: float | None = None  # units per second lately
    left_seconds: tuple[float, float] | None = None  # at the fastest and at the slowest of the recent rates
    actors: int = 0  # at work or ready for it
    tokens_per_second: float | None = None
    batch_rows: int | None = None  # decoded together lately
    cache_bytes: int | None = None  # what such a batch holds: K, V, indexer keys, memory
    note: str = ""  # what the run waits for, if anything
    failures: tuple[FailureNote, ...] = ()  # the last ones, newest first
    kinds: tuple[FailureNote, ...] = ()  # the first of each kind, oldest first
    scores: ScoresSoFar | None = None
    measured: Mapping[str, float] = field(default_factory=dict)  # latest values by name, such as of losses

    @property
    def time_left(self) -> str:
        """'30 to 50 s left', '90 s to 3 min left', 'about 2 min left'; '' while nothing is known, and at the end."""
        if self.left_seconds is None or self.done >= self.total:
            return ""
        least, most = map(duration, self.left_seconds)
        if least == most:
            return f"about {most} left"
        number, unit = least.split()
        return f"{number if most.endswith(unit) else least} to {most} left"

    def line(self) -> str:
        """For example '120/500 rows  3 failed  12.5 rows/s  30 to 50 s left  4 actors'."""
        parts = [f"{self.done}/{self.total} {self.unit}"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        parts += [f"{name} {value:.4f}" for name, value in list(self.measured.items())[:1]]
        if self.rate:
            parts.append(f"{self.rate:.3g} {self.unit}/s")
        if self.tokens_per_second:
            parts.append(f"{self.tokens_per_second:.0f} tokens/s")
        if self.time_left:
            parts.append(self.time_left)
        if self.actors:
            parts.append(f"{self.actors} actor{'s' if self.actors > 1 else ''}")
        return "  ".join([*parts, self.note] if self.note else parts)


def left_at(work: float, rates: Sequence[float]) -> tuple[float, float] | None:
    """Least and most seconds that so many units take, at rates (units per second) of several spans of a run; None
    where there are no two of them, or one of them stands still.
    """
    return (work / max(rates), work / min(rates)) if len(rates) > 1 and min(rates) > 0 else None


def duration(seconds: float) -> str:
    """'40 s', '12 min' or '3.5 h'."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def size(count: float) -> str:
    """'512 B', '1.5 MiB' or '20 GiB'."""
    units = ("B", "KiB", "MiB", "GiB")
    step = 0
    while count >= 1024 and step < len(units) - 1:
        count, step = count / 1024, step + 1
    return f"{count:.0f} {units[step]}" if count >= 100 else f"{count:.3g} {units[step]}"


def one_line(text: str) -> str:
    """`text` without line breaks, terminal escapes and marks that reorder text, cut to MAX_TEXT characters."""
    printable = "".join(character if character.isprintable() else " " for character in text[: 4 * MAX_TEXT])
    words = " ".join(printable.split())
    return words if len(words) <= MAX_TEXT else f"{words[: MAX_TEXT - 1]}…"

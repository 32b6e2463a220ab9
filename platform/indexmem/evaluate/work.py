"""What a grid is made of, and the units of work that it is handed out in, which name their rows by index alone.

Nothing here imports torch, so a worker can be told its work before it loads a model.
Shapes: S samples (of a unit, or of a benchmark) and C cells of one benchmark.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress, islice
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from indexmem.benchmarks.base import Sample
from indexmem.config.budget import Budget
from indexmem.config.schema import Experiment, MethodConfig

Mask = NDArray[np.bool_]  # missing_SC: rows that the store lacks

RETENTION_SAMPLES = 2  # per benchmark: samples whose kept tokens are stored, whatever comes of them
# A context cut into pieces is prefilled once for each, so pieces stay large: so many rows, such a share of the cells.
SMALLEST_PIECE = 64
PIECES = 8


@dataclass(frozen=True)
class GridCell:
    """One (method, budget) on one benchmark build."""

    id: str
    method: MethodConfig
    budget: Budget
    benchmark: str
    benchmark_build: str
    checkpoint: str
    code: str = ""  # hash of the method's source where that is not ours


@dataclass(frozen=True)
class Task:
    """One sample with the cells that still need it."""

    sample: Sample
    cells: tuple[GridCell, ...]
    keep_retention: bool = False  # store which tokens each cell kept, for the viewer


@dataclass(frozen=True)
class Assignment:
    """What every worker must know, sent once; units then refer to it by index."""

    experiment: Experiment
    methods: Mapping[str, MethodConfig]  # label -> config
    cells: Mapping[str, tuple[GridCell, ...]]  # benchmark -> cells
    samples: Mapping[str, pa.Array]  # benchmark -> pickled samples: read in place, not copied into every worker
    model_fingerprint: str
    checkpoint: str | None
    provenance: Mapping[str, Any]
    examples: frozenset[str] = frozenset()  # further samples whose kept tokens the store has, by id

    def tasks(self, unit: Unit) -> list[Task]:
        """The unit's samples with the cells to evaluate."""
        cells, samples = self.cells[unit.benchmark], self.samples[unit.benchmark]
        asked = [(index, pickle.loads(samples[index].as_buffer())) for index in unit.samples]
        return [
            Task(sample, tuple(compress(cells, row_C)), index < RETENTION_SAMPLES or sample.id in self.examples)
            for (index, sample), row_C in zip(asked, unit.missing_SC(len(cells)))
        ]


def contexts_of(samples: Sequence[Sample]) -> list[int]:
    """Which context each sample asks about, as a number. Repeats of a question count apart: they are far from it in
    a grid's order."""
    numbers: dict[Any, int] = {}
    return [numbers.setdefault((sample.read_first, sample.repeat), len(numbers)) for sample in samples]


def packed_samples(samples: Sequence[Sample]) -> pa.Array:
    """Samples as one Arrow array, which Ray's object store shares between the processes of a node."""
    return pa.array([pickle.dumps(sample) for sample in samples], pa.large_binary())


@dataclass(frozen=True)
class Unit:
    """Some samples of a benchmark and, for each, the cells to evaluate, as bits: small however many cells there are."""

    benchmark: str
    samples: tuple[int, ...]
    bits: bytes  # missing_SC packed along the cells
    rows: int
    attempts: int = 0  # workers that died on it

    @classmethod
    def of(cls, benchmark: str, samples: tuple[int, ...], missing_SC: Mask) -> Unit:
        bits = np.packbits(missing_SC, axis=1).tobytes()
        return cls(benchmark, samples, bits, int(missing_SC.sum()))

    def missing_SC(self, cells: int) -> Mask:
        """The unit's rows among the `cells` cells of its benchmark."""
        packed = np.frombuffer(self.bits, np.uint8).reshape(len(self.samples), -1)
        return np.unpackbits(packed, axis=1, count=cells).astype(bool)

    def singles(self) -> list[Unit]:
        """Its rows, one sample a unit, as if never tried."""
        width = len(self.bits) // len(self.samples)
        rows = [self.bits[i * width : (i + 1) * width] for i in range(len(self.samples))]
        counts = [int(np.unpackbits(np.frombuffer(row, np.uint8)).sum()) for row in rows]
        return [Unit(self.benchmark, (s,), row, count) for s, row, count in zip(self.samples, rows, counts)]


class Backlog:
    """Missing rows that no worker has yet. Hands them out context by context over all benchmarks, so that an
    interrupted grid has something to show for each. Samples that follow one another and ask about one context stay
    together: it is prefilled once for all of them.
    """

    def __init__(self, missing: Mapping[str, Mask], contexts: Mapping[str, Sequence[int]] | None = None) -> None:
        """`missing`: benchmark -> missing_SC; `contexts`: benchmark -> which context each of its S samples asks about,
        by default one of its own."""
        self._missing = {benchmark: missing_SC.copy() for benchmark, missing_SC in missing.items()}
        self._contexts = contexts or {benchmark: range(len(missing_SC)) for benchmark, missing_SC in missing.items()}
        samples = {name: deque(np.flatnonzero(m.any(axis=1)).tolist()) for name, m in missing.items()}
        self._samples: dict[str, deque[int]] = {name: queue for name, queue in samples.items() if queue}
        self._returned: deque[Unit] = deque()
        self.rows = sum(int(missing_SC.sum()) for missing_SC in missing.values())

    @property
    def samples(self) -> int:
        """How many samples are left: an upper bound on useful workers."""
        return sum(map(len, self._samples.values())) + sum(len(unit.samples) for unit in self._returned)

    def take(self, contexts: int, rows: int) -> Unit:
        """The next unit: samples of at most `contexts` contexts, about `rows` rows, at least a piece of a context."""
        assert self.rows, "nothing is left to take"
        unit = self._returned.popleft() if self._returned else self._cut(contexts, rows)
        self.rows -= unit.rows
        return unit

    def put_back(self, unit: Unit) -> None:
        """Queue a unit that was not worked on: it is the next to be taken."""
        self._returned.append(unit)
        self.rows += unit.rows

    def retry(self, unit: Unit, max_attempts: int) -> bool:
        """Queue a unit on which a worker died: whole at first, then sample by sample. False when neither is left."""
        tried = replace(unit, attempts=unit.attempts + 1)
        if tried.attempts < max_attempts:
            self.put_back(tried)
        elif len(unit.samples) > 1:
            for single in unit.singles():
                self.put_back(single)
        else:
            return False
        return True

    def _cut(self, contexts: int, rows: int) -> Unit:
        benchmark = min(self._samples, key=lambda name: self._samples[name][0])
        queue, missing_SC = self._samples[benchmark], self._missing[benchmark]
        taken = self._next_context(benchmark, 0)
        cells = np.flatnonzero(missing_SC[taken].any(axis=0))
        piece = max(-(-max(rows, SMALLEST_PIECE) // len(taken)), -(-missing_SC.shape[1] // PIECES))
        if len(cells) < 2 * piece:  # not worth prefilling again: whole contexts
            for _ in range(contexts - 1):
                more = self._next_context(benchmark, len(taken))
                if not more or int(missing_SC[taken + more].sum()) > rows:
                    break
                taken += more
            chosen_SC = missing_SC[taken]
        else:
            chosen_SC = np.zeros((len(taken), missing_SC.shape[1]), bool)
            chosen_SC[:, cells[:piece]] = missing_SC[taken][:, cells[:piece]]
        missing_SC[taken] &= ~chosen_SC
        for _ in taken:
            queue.popleft()
        queue.extendleft(sample for sample in reversed(taken) if missing_SC[sample].any())
        if not queue:
            del self._samples[benchmark]
        asked = np.flatnonzero(chosen_SC.any(axis=1)).tolist()
        return Unit.of(benchmark, tuple(taken[place] for place in asked), chosen_SC[asked])

    def _next_context(self, benchmark: str, begin: int) -> list[int]:
        """The samples from place `begin` of the queue on that ask about one context; none at its end."""
        context_S = self._contexts[benchmark]
        same: list[int] = []
        for sample in islice(self._samples[benchmark], begin, None):
            if same and context_S[sample] != context_S[same[0]]:
                break
            same.append(sample)
        return same

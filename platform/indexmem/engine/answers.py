"""What the rows of a decode batch have answered so far, and how many tokens they held meanwhile."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from indexmem.engine.cache import RaggedCache


@dataclass(frozen=True)
class FollowUp:
    """A question that is read after the answer before it, which stays in the cache."""

    question_ids: list[int]  # begins with what ends an answer; the token that ended one by itself is not read
    max_new_tokens: int


@dataclass(frozen=True)
class Answer:
    """Of one row."""

    token_ids: list[int]  # the ending token included, as kvpress does
    ended: bool  # False: cut at its limit; of the last answer
    held_mean: float  # tokens that a head held, over steps, layers and heads
    held_max: int
    seconds: float  # the batch's wall time
    batch: int  # rows in the batch
    later: tuple[list[int], ...] = ()  # answers to the follow-ups
    likelihoods: tuple[float, ...] = ()  # log-likelihoods of its options, in nats


class RowTurns:
    """A row's answers so far, and what of its next question is still to be read."""

    def __init__(self, max_new_tokens: int, follow_ups: Sequence[FollowUp]) -> None:
        self.answers: list[list[int]] = [[]]
        self.limit = max_new_tokens  # of the answer that grows
        self.forced: deque[int] = deque()
        self._left = deque(follow_ups)

    def follow(self) -> bool:
        """Begin the next turn; False when there is none."""
        if not self._left:
            return False
        turn = self._left.popleft()
        self.answers.append([])
        self.forced, self.limit = deque(turn.question_ids), turn.max_new_tokens
        return True


class HeldTokens:
    """How many tokens a row's heads hold while it answers, summed over steps; rows are known by their first number.

    The first step is the one that reads the question. From then on a lane grows by a token a step, until the cache is
    repacked: so it is enough to measure the batch's buffers then.
    """

    def __init__(self, cache: RaggedCache, rows: int) -> None:
        self._cache = cache
        self._mean, self._most = [0.0] * rows, [0] * rows  # at the last measurement, over layers and heads
        self._since = 0  # steps since
        self._total, self._peak, self._steps = [0.0] * rows, [0] * rows, [0] * rows

    def measure(self, rows: Sequence[int]) -> None:
        """Count what the cache holds now of its `rows`, in their order."""
        lengths_LRH = self._cache.lengths().unflatten(1, (len(rows), self._cache.heads))
        means, peaks = lengths_LRH.double().mean((0, 2)).tolist(), lengths_LRH.amax((0, 2)).tolist()
        for row, mean, most in zip(rows, means, peaks):
            self._mean[row], self._most[row] = mean, most
        self._since = 0

    def grow(self) -> None:
        """A token more in every lane."""
        self._since += 1

    def count(self, rows: Iterable[int]) -> None:
        """A step of these rows."""
        for row in rows:
            self._total[row] += self._mean[row] + self._since
            self._peak[row] = max(self._peak[row], self._most[row] + self._since)
            self._steps[row] += 1

    def of(self, row: int) -> tuple[float, int]:
        """Mean over the row's steps, layers and heads, and the most that a head held."""
        return self._total[row] / self._steps[row], self._peak[row]

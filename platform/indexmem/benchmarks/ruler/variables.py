"""RULER's variable tracking (vt): a chain of assignments in a noise haystack; which names hold the number?

One solved example with shorter names stands before the task, inside the compressed part. Unlike in RULER no name or
number occurs in any other place, whatever the case of its letters, because the score ignores case.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from indexmem.benchmarks.base import BuildContext
from indexmem.benchmarks.ruler.haystack import NOISE_LINE, Haystack
from indexmem.benchmarks.ruler.task import Asked, Draft, DrawText, RulerTask
from indexmem.benchmarks.ruler.words import distinct, draw_example_variable, draw_short_number, draw_variable

INTRO = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
QUESTION = "Question: Find all variables that are assigned the value {query} in the text above."
ANSWER_PREFIX = (
    "Answer: According to the chain(s) of variable assignment in the text above, "
    "{count} variables are assigned the value {query}, they are: "
)
FIXED_TEXT = (INTRO + QUESTION + ANSWER_PREFIX + NOISE_LINE + "VAR").upper()

EXAMPLE_LINES = 10  # with these an example stays below RULER's 500 tokens


@dataclass(frozen=True, kw_only=True)
class VariableTracking(RulerTask):
    """One chain of `hops` copies of a number from name to name, that is `hops` + 1 names, all of them asked for."""

    hops: int = 4
    max_new_tokens: int = 30

    def drawing(self, build: BuildContext) -> DrawText:
        """Names, number and places of a sample and of its example."""
        filler = Haystack.of([NOISE_LINE], "\n", build.tokenizer)
        return lambda index: self._draw(self.rng(index, build), filler)

    def ingredients(self, build: BuildContext) -> Mapping[str, Any]:
        """The length of the chain."""
        return {"hops": self.hops, "example_lines": EXAMPLE_LINES}

    def _draw(self, rng: random.Random, filler: Haystack) -> Draft:
        number, example_number = distinct(draw_short_number, 2, rng, absent_from="")
        example_names = self._names(draw_example_variable, rng)
        example = filler.with_needles(EXAMPLE_LINES, _chain(example_names, example_number, rng))
        solved = "\n".join(
            (
                INTRO + example,
                f"{QUESTION.format(query=example_number)} "
                f"{ANSWER_PREFIX.format(count=len(example_names), query=example_number)}{' '.join(example_names)}",
                "",
            )
        )
        names = self._names(draw_variable, rng)
        statements = _chain(names, number, rng)
        return Draft(
            context=lambda units: f"{solved}\n{INTRO}{filler.with_needles(units, statements)}\n",
            unit_tokens=filler.tokens,
            asked=(
                Asked(
                    QUESTION.format(query=number), ANSWER_PREFIX.format(count=len(names), query=number), tuple(names)
                ),
            ),
        )

    def _names(self, draw: Callable[[random.Random], str], rng: random.Random) -> list[str]:
        return distinct(draw, self.hops + 1, rng, absent_from=FIXED_TEXT)


def _chain(names: Sequence[str], number: str, rng: random.Random) -> list[tuple[float, str]]:
    """(depth, statement) of each assignment, in order and at increasing depths."""
    statements = [f"VAR {names[0]} = {number}"]
    statements += [f"VAR {later} = VAR {earlier}" for earlier, later in pairwise(names)]
    return list(zip(sorted(rng.random() for _ in statements), statements))

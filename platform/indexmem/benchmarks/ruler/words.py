"""Words, names, numbers and keys that samples are made of, drawn from a seeded generator."""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import Callable
from functools import cache
from string import ascii_lowercase, ascii_uppercase

from indexmem.extras import need


@cache
def word_list(category: str) -> tuple[str, ...]:
    """The `wonderwords` list called `category` ("adjective", "noun" or "verb"): single lower-case words, sorted, none
    profane.
    """
    need("benchmarks", "wonderwords")
    from wonderwords import RandomWord, filter_profanity

    words = filter_profanity(RandomWord().filter(include_categories=[category]))
    return tuple(sorted({word for word in words if re.fullmatch("[a-z]+", word)}))


def draw_words(rng: random.Random) -> str:
    """An adjective-noun pair."""
    return f"{rng.choice(word_list('adjective'))}-{rng.choice(word_list('noun'))}"


def draw_number(rng: random.Random) -> str:
    """Seven digits, the first not 0."""
    return str(rng.randrange(10**6, 10**7))


def draw_short_number(rng: random.Random) -> str:
    """Five digits, the first not 0."""
    return str(rng.randrange(10**4, 10**5))


def draw_variable(rng: random.Random) -> str:
    """A name of five capital letters."""
    return "".join(rng.choices(ascii_uppercase, k=5))


def draw_example_variable(rng: random.Random) -> str:
    """A name of three capital letters, which no `draw_variable` can be confused with."""
    return "".join(rng.choices(ascii_uppercase, k=3))


def draw_code(rng: random.Random) -> str:
    """A coded word of six small letters."""
    return "".join(rng.choices(ascii_lowercase, k=6))


def draw_uuid(rng: random.Random) -> str:
    """A version-4 UUID."""
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def distinct(draw: Callable[[random.Random], str], count: int, rng: random.Random, absent_from: str) -> list[str]:
    """`count` different strings, none of which the text `absent_from` contains."""
    found: dict[str, None] = {}
    while len(found) < count:
        candidate = draw(rng)
        if candidate not in absent_from:
            found[candidate] = None
    return list(found)

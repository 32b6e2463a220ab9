"""Generated documents about invented people and firms, for question answering where no data set is at hand.

Names are made of two-letter syllables: all towns are equally long and longer than any other name, so none is part of
another name, and each stands in one document. An answer thus follows from its documents and from nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from itertools import product

from indexmem.benchmarks.ruler.corpora import Corpus, Question
from indexmem.benchmarks.ruler.words import distinct, word_list

SYLLABLES = tuple(map("".join, product("bdfgklmnprstvz", "aeiou")))
JOBS = ("baker", "carpenter", "nurse", "sailor", "teacher", "gardener", "clockmaker", "librarian", "surveyor", "weaver")
SEASONS = ("spring", "summer", "autumn", "winter")

BIRTH = (
    "{person} was born in the town of {town}. {person} worked there as a {job} for {years} years and spent every "
    "{season} at the sea. Friends remember a {adjective} {noun} that stood in front of the house."
)
DIRECTOR = (
    "{person} directs the firm {firm}. Before that, {person} was a {job} for {years} years. Each {season}, {person} "
    "gives a talk about the {adjective} {noun} that started it all."
)
SEAT = (
    "The firm {firm} has its head office in the town of {town}. It was founded by a {job} and has made one product for "
    "{years} years, the {adjective} {noun}. Most orders arrive in {season}."
)


def one_document(people: int, seed: int) -> Corpus:
    """Where was a person born? One document about each says it."""
    rng = random.Random(f"{seed}/one document")
    persons, towns = _persons(people, rng), _towns(people, rng)
    documents = [_filled(BIRTH, rng, person=person, town=town) for person, town in zip(persons, towns)]
    questions = [
        Question(f"In which town was {person} born?", (town,), (number,))
        for number, (person, town) in enumerate(zip(persons, towns))
    ]
    return Corpus(documents, questions)


def two_documents(people: int, seed: int) -> Corpus:
    """Where has the firm that a person directs its head office? One document names the firm, another one the town."""
    rng = random.Random(f"{seed}/two documents")
    persons, towns = _persons(people, rng), _towns(people, rng)
    firms = distinct(partial(_name, syllables=3), people, rng, absent_from=" ".join(persons))
    documents = [_filled(DIRECTOR, rng, person=person, firm=firm) for person, firm in zip(persons, firms)]
    documents += [_filled(SEAT, rng, firm=firm, town=town) for firm, town in zip(firms, towns)]
    questions = [
        Question(
            f"In which town does the firm that {person} directs have its head office?",
            (town,),
            (number, people + number),
        )
        for number, (person, town) in enumerate(zip(persons, towns))
    ]
    return Corpus(documents, questions)


def _filled(template: str, rng: random.Random, **names: str) -> str:
    return template.format(
        **names,
        job=rng.choice(JOBS),
        years=rng.randrange(2, 40),
        season=rng.choice(SEASONS),
        adjective=rng.choice(word_list("adjective")),
        noun=rng.choice(word_list("noun")),
    )


def _name(rng: random.Random, syllables: int) -> str:
    return "".join(rng.choices(SYLLABLES, k=syllables)).capitalize()


def _persons(count: int, rng: random.Random) -> Sequence[str]:
    return distinct(lambda rng: f"{_name(rng, 2)} {_name(rng, 3)}", count, rng, absent_from="")


def _towns(count: int, rng: random.Random) -> Sequence[str]:
    return distinct(partial(_name, syllables=5), count, rng, absent_from="")

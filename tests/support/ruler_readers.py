"""Readers of RULER samples: each knows the published wording, finds the answers in the text and checks the rest of it.

They share no code with the generators. A reader takes a sample and returns the answers that follow from its text.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import takewhile

import numpy as np

from indexmem.benchmarks.base import Sample

VT_INTRO = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
CWE_INTRO = (
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n"
)
FWE_INTRO = (
    "Read the following coded text and track the frequency of each coded word. "
    "Find the three most frequently appeared coded words. "
)
QA_INSTRUCTION = (
    "Answer the question based on the given documents. Only give me the answer and do not output any other words.\n\n"
)


def read_vt(sample: Sample) -> set[str]:
    """Follow the assignments to the number that is asked for; the solved example must be right as well."""
    nothing, solved, text = sample.context.split(VT_INTRO)
    assert nothing == ""
    number = re.fullmatch(
        r"Question: Find all variables that are assigned the value (\d{5}) in the text above\.", sample.question
    )[1]
    example = re.fullmatch(
        r"(.*)\nQuestion: Find all variables that are assigned the value (\d{5}) in the text above\. "
        r"Answer: According to the chain\(s\) of variable assignment in the text above, 5 variables are assigned the "
        r"value \2, they are: ((?:[A-Z]{3} ?){5})\n\n",
        solved,
        re.DOTALL,
    )
    assert example and example[2] != number
    assert _chain(example[1])[example[2]] == example[3].split()
    assert sample.answer_prefix == (
        "Answer: According to the chain(s) of variable assignment in the text above, "
        f"5 variables are assigned the value {number}, they are: "
    )
    names = _chain(text)[number]
    assert all(re.fullmatch("[A-Z]{5}", name) for name in names)
    return set(names)


def _chain(text: str) -> dict[str, list[str]]:
    """number -> names that hold it, in order. A name must be assigned before it is read, and once."""
    values: dict[str, str] = {}
    for name, source in re.findall(r"^VAR ([A-Z]+) = (?:VAR )?(\w+)$", text, re.MULTILINE):
        assert name not in values
        values[name] = source if source.isdigit() else values[source]
    rest = re.sub(r"^VAR .*\n?", "", text, flags=re.MULTILINE).lower()
    assert not any(name.lower() in rest for name in values), "a name stands in its statements alone"
    found: dict[str, list[str]] = {}
    for name, value in values.items():
        found.setdefault(value, []).append(name)
    return found


def read_cwe(sample: Sample) -> set[str]:
    """Count the words of the list; the solved example must be right as well."""
    nothing, solved, text = sample.context.split(CWE_INTRO)
    assert nothing == ""
    asked, prefix = "Question: What are the 10 most common words in the above list?", "Answer: The top 10 words that"
    assert sample.question == asked and sample.answer_prefix.startswith(prefix)
    example, answer = solved.split(f"\n{asked} {sample.answer_prefix} ")
    answers, _ = _common(example)
    assert set(_numbered(answer.rstrip("\n"))) == answers
    found, counts = _common(text.rstrip("\n"))
    assert not any(word in other for word in found for other in counts if other != word), "no word within a word"
    assert found.isdisjoint(_numbered(example))
    return found


def _numbered(text: str) -> list[str]:
    entries = re.findall(r"(\d+)\. (\S+)", text)
    assert [int(number) for number, _ in entries] == list(range(1, len(entries) + 1))
    assert " ".join(f"{number}. {word}" for number, word in entries) == text
    return [word for _, word in entries]


def _common(text: str) -> tuple[set[str], Counter[str]]:
    counts = Counter(_numbered(text))
    most, *others = sorted(set(counts.values()), reverse=True)
    assert len(others) == 1, "there are common words and others, and each kind comes equally often"
    found = {word for word, count in counts.items() if count == most}
    assert len(found) == 10
    return found, counts


def read_fwe(sample: Sample) -> set[str]:
    """Count the coded words; their counts must follow the zeta law of some total."""
    counts, words = fwe_counts(sample)
    assert words[0] == "..."
    totals = [n for n in range(1, 10 * sum(counts)) if _law(n, len(counts)) == counts]
    assert totals, "the counts are those of the law for some total"
    assert len(set(counts[1:5])) == len(counts[1:5]), "no tie about the top three"
    assert all(re.fullmatch("[a-z]{6}", word) for word in words[1:])
    return set(words[1:4])


def fwe_counts(sample: Sample) -> tuple[list[int], list[str]]:
    """Counts and words of a coded text, the most frequent first."""
    assert sample.context.startswith(FWE_INTRO)
    assert sample.answer_prefix.endswith("the three most frequently appeared words are:")
    ranked = Counter(sample.context.removeprefix(FWE_INTRO).split()).most_common()
    return [count for _, count in ranked], [word for word, _ in ranked]


def _law(total: int, ranks: int) -> list[int]:
    """floor(N k^-2 / zeta(2)), without the ranks that do not come at all."""
    every = np.floor(total * np.arange(1, ranks + 2) ** -2.0 / (np.pi**2 / 6)).astype(int).tolist()
    return list(takewhile(bool, every))


def read_qa(sample: Sample) -> set[str]:
    """Answer a question about invented people from the documents; the answer stands in one document alone."""
    documents = qa_documents(sample)
    question = sample.question.removeprefix(f"{QA_INSTRUCTION}Question: ")
    if born := re.fullmatch(r"In which town was (.+) born\?", question):
        towns = re.findall(rf"{born[1]} was born in the town of (\w+)\.", "\n".join(documents))
    else:
        directs = re.fullmatch(r"In which town does the firm that (.+) directs have its head office\?", question)
        assert directs, question
        (firm,) = re.findall(rf"{directs[1]} directs the firm (\w+)\.", "\n".join(documents))
        towns = re.findall(rf"The firm {firm} has its head office in the town of (\w+)\.", "\n".join(documents))
    assert len(towns) == 1
    assert sum(towns[0].lower() in document.lower() for document in documents) == 1
    return set(towns)


def qa_documents(sample: Sample) -> list[str]:
    """The documents, numbered from 1 without a gap, none twice."""
    text = sample.context.removeprefix(f"{QA_INSTRUCTION}The following are given documents.\n\n")
    assert text != sample.context and sample.question.startswith(QA_INSTRUCTION) and sample.answer_prefix == "Answer:"
    parts = re.split(r"(?:^|\n\n)Document (\d+):\n", text.removesuffix("\n\n"))
    numbers, documents = parts[1::2], parts[2::2]
    assert parts[0] == "" and list(map(int, numbers)) == list(range(1, len(numbers) + 1))
    assert len(set(documents)) == len(documents)
    return documents


def read_niah(sample: Sample) -> set[str]:
    """The values of the keys that the question names."""
    kind = re.search(r"special magic (number|uuid)", sample.question)[1]
    pairs = re.findall(rf"One of the special magic {kind}s for (\S+) is: (\S+)\.", sample.context)
    assert len({value for _, value in pairs}) == len(pairs)
    asked = re.search(r" for (.+) mentioned in the provided text\?", sample.question)[1]
    keys = set(re.split(r", and |, ", asked))
    return {value for key, value in pairs if key in keys}


READERS = {"vt": read_vt, "cwe": read_cwe, "fwe": read_fwe, "qa_1": read_qa, "qa_2": read_qa}


def read(sample: Sample) -> set[str]:
    """The answers that follow from a sample's text, whichever task it is of."""
    return READERS.get(sample.benchmark, read_niah)(sample)

"""How the testbed's tokenizer was made: byte-level BPE whose pieces never depend on what stands around them.

Text is cut into words (with the blank before them), runs of capitals, up to three digits from the left, punctuation
and single white space. A name, number or key is thus the same tokens wherever it stands, which is what copying needs.
All numbers of up to three digits are one token; the other merges are learned from words that the tasks are made of.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import product
from string import digits

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from indexmem.benchmarks.ruler import common_words, frequent_words, invented, niah, qa, variables
from indexmem.benchmarks.ruler.haystack import NOISE_LINE
from indexmem.benchmarks.ruler.words import word_list
from indexmem.texts.documents import documents_of
from indexmem_testbed.tokenizer import VOCABULARY

BEGIN, END = "<s>", "</s>"
PIECE = r" ?[A-Z]?[a-z]+|[A-Z]+|[0-9]{1,3}| ?[^\sA-Za-z0-9]+|\s"
LONGEST_NUMBER = 3  # digits of a token; PIECE cuts there
TEXT = "essays-train"
SCRIPTURE = "king-james"
SCRIPTURE_CHARACTERS = 20_000  # of each book: it is ten times as long as all essays, and of other words
WORD_COUNT = 20  # times that each word of the tasks is counted, beside those of the texts
WORDING_COUNT = 2000  # times that what all samples of a task say is counted
WORDINGS = (
    *(NOISE_LINE, niah.NEEDLE, *niah.ONE_ANSWER, *niah.MANY_ANSWERS),
    *(" magic number numbers uuid uuids", "\nVAR = VAR"),
    *(variables.INTRO, variables.QUESTION, variables.ANSWER_PREFIX),
    *(common_words.INTRO, common_words.QUESTION, common_words.ANSWER_PREFIX),
    *(frequent_words.INTRO, frequent_words.QUESTION, frequent_words.ANSWER_PREFIX),
    *(qa.INTRO, qa.HEADING, invented.BIRTH, invented.DIRECTOR, invented.SEAT, *invented.JOBS, *invented.SEASONS),
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Train it again, from the built-in texts alone: no evaluation text is read. Deterministic."""
    numbers = [first + second for count in range(1, LONGEST_NUMBER) for first, second in _splits(count)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECE), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(numbers),
        special_tokens=[BEGIN, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    # No digits: their merges are not learned but given.
    tokenizer.train_from_iterator((re.sub("[0-9]+", " ", text) for text in _corpus()), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=_with_numbers(tokenizer),
        bos_token=BEGIN,
        eos_token=END,
        pad_token=END,
        clean_up_tokenization_spaces=False,
    )


def _splits(count: int) -> Iterator[tuple[str, str]]:
    """Merges that make all numbers of `count` + 1 digits from those of `count`."""
    return (("".join(head), tail) for head in product(digits, repeat=count) for tail in digits)


def _with_numbers(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with a token for every number of two and three digits."""
    content = json.loads(tokenizer.to_str())
    model = content["model"]
    for count in range(1, LONGEST_NUMBER):
        for pair in _splits(count):
            model["merges"].append(list(pair))
            model["vocab"]["".join(pair)] = len(model["vocab"])
    # Whichever two digits of three are merged first, the third one joins them.
    model["merges"] += [[first, second + third] for first, second, third in product(digits, repeat=LONGEST_NUMBER)]
    return Tokenizer.from_str(json.dumps(content))


def _corpus() -> Iterator[str]:
    yield from documents_of(TEXT)
    for book in documents_of(SCRIPTURE):
        yield book[:SCRIPTURE_CHARACTERS]
    for word in sorted({word for kind in ("adjective", "noun", "verb") for word in word_list(kind)}):
        yield f" {word}" * WORD_COUNT
    for noun in word_list("noun"):
        yield f"-{noun}" * WORD_COUNT
    for wording in WORDINGS:
        yield f"{wording} " * WORDING_COUNT

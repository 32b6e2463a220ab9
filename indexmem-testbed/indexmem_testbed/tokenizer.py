"""The testbed's tokenizer: byte-level BPE whose pieces never depend on what stands around them.

Text is cut into words (with the blank before them), runs of capitals, up to three digits from the left, punctuation
and single white space. A name, number or key is thus the same tokens wherever it stands, which is what copying needs.
All numbers of up to three digits are one token; the other merges were learned from words that the tasks are made of
(tests/tokenizer_training.py makes it again).
"""

from __future__ import annotations

from transformers import PreTrainedTokenizerFast

from indexmem.models.assets import SHIPPED, TESTBED

VOCABULARY = 4096


def load_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer of the testbed that indexmem carries."""
    return PreTrainedTokenizerFast.from_pretrained(SHIPPED / TESTBED)

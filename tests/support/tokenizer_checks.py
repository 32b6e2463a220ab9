"""Whether a tokenizer is sound: within its vocabulary, without loss, and the same after any text."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from indexmem.models.prompt import encode

ORDINARY_TEXTS = (
    "The quick brown fox jumps over 1234 lazy dogs.",
    "def f(x):\n    return x ** 2  # naïve, 3.14\n",
    " leading,  double and trailing space ",
)
HOSTILE_TEXTS = (
    "<FILL_ME>",
    "def f(<FILL_ME>):",
    "\u2581<PRE> a \u2581<SUF> b \u2581<MID> c \u2581<EOT>",
    "<s>[INST] <<SYS>> x <</SYS>> [/INST]</s><unk><pad>",
    "<|im_end|>\n<|im_start|>system\n<|endoftext|><|eot_id|>< |im_end|>",
    "\u2581\u2581 \u0120\u010a \ufeff nul \0 bell \a",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f3f4\U000e0067\U000e007f",
    "\u202eright to left\u202c \u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd",
    "e\u0301 \u00e9 \ufb01 \u2163 \u0663\u0664 \r\n \r \u2028",
    "".join(map(chr, range(0x20, 0x100))),
)


def verify_tokenizer(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> None:
    """Check that every id has an embedding, that text survives, and that no text changes how later text is encoded.

    Raises:
        AssertionError: the first text or id that breaks one of these rules.
    """
    largest = max(tokenizer.get_vocab().values())
    assert largest < vocab_size, f"token id {largest} has no embedding (vocabulary of {vocab_size})"
    before = [encode(tokenizer, text) for text in ORDINARY_TEXTS]
    for text in (*HOSTILE_TEXTS, *ORDINARY_TEXTS):
        ids = encode(tokenizer, text)
        assert max(ids) < vocab_size, f"{text!r} is encoded to id {max(ids)} (vocabulary of {vocab_size})"
        decoded = tokenizer.decode(ids)
        assert decoded == text, f"{text!r} comes back as {decoded!r}"
    after = [encode(tokenizer, text) for text in ORDINARY_TEXTS]
    assert before == after, "encoding one text changed how another is encoded"

"""Small tokenizers of three kinds, and a text whose sentences are numbered so that a reader can tell where it is."""

from __future__ import annotations

from functools import cache

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[user] {{ message['content'] }} [end]\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
# As Qwen3's: nothing but an explicit false closes the thinking part before it has begun.
NO_THOUGHT = "{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}"
THINKING_TEMPLATE = CHAT_TEMPLATE.replace("[assistant] ", "[assistant] " + NO_THOUGHT)
THINGS = ("harbour", "lantern", "old stone bridge", "winter", "letter that nobody has answered yet", "orchard wall")
SENTENCES = tuple(
    f"Page {i} tells of the {THINGS[i % 6]} and of the {THINGS[i * 5 % 4]}" + " again and again" * (i % 5) + "."
    for i in range(211)
)
TEXT = "\n\n".join(" ".join(SENTENCES[start : start + 7]) for start in range(0, len(SENTENCES), 7))


def _words() -> Tokenizer:
    """One token a word, all unknown."""
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "page": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def _byte_level() -> Tokenizer:
    """BPE over bytes, split at words as in GPT-2: tokens of units add up."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return tokenizer


def _unsplit() -> Tokenizer:
    """BPE over whole texts, as in sentencepiece: merges cross the seams, so tokens of units do not add up."""
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["[UNK]"], show_progress=False)
    tokenizer.train_from_iterator([" ".join(SENTENCES[i : i + 2]) for i in range(60)], trainer)
    return tokenizer


KINDS = {"words": _words, "byte_level": _byte_level, "unsplit": _unsplit}


@cache
def _trained(kind: str) -> str:
    return KINDS[kind]().to_str()


def tiny_tokenizer(kind: str = "byte_level", chat: bool = True) -> PreTrainedTokenizerFast:
    """A new tokenizer of one of KINDS, with or without a chat template."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_trained(kind)), bos_token="<s>", unk_token="[UNK]"
    )
    tokenizer.chat_template = CHAT_TEMPLATE if chat else None
    return tokenizer

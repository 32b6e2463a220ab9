"""GGUF -> Hugging Face folder: fp32 safetensors and a plain fast tokenizer, and the checks that both are sound.

transformers turns the tokenizer inside a Llama GGUF into a CodeLlamaTokenizer. That class has a fill-in-the-middle
state which one hostile text switches on for every later text, and token ids beyond the embedding. So the tokenizer is
built here, from the file's own vocabulary, merges and special tokens.
"""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from gguf import GGUFReader, TokenType
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from indexmem.models.prompt import PromptFormat, encode

if TYPE_CHECKING:
    from transformers import GenerationMixin, PreTrainedTokenizerBase

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


def convert(gguf: Path, folder: Path) -> None:
    """Write the model and tokenizer of `gguf` to `folder` in Hugging Face layout, weights dequantised to fp32."""
    with redirect_stderr(io.StringIO()):  # progress bars; transformers' own switch does not reach all of them
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        model.save_pretrained(folder)
    build_tokenizer(gguf).save_pretrained(folder)


def build_tokenizer(gguf: Path) -> PreTrainedTokenizerFast:
    """The byte-level BPE tokenizer that a GGUF describes, as a fast tokenizer without any model-specific behaviour.

    Bytes that the vocabulary lacks are dropped, as in the original tokenizer. SmolLM2 lacks six ASCII control
    characters (such as 0x04) and the lead bytes of Unicode planes 4 to 11, which are unassigned.
    """
    fields = GGUFReader(gguf).fields

    def read(key: str) -> Any:
        return fields[f"tokenizer.{key}"].contents()

    described = read("ggml.model"), read("ggml.pre")
    assert described == ("gpt2", "smollm"), f"{gguf.name}: no rule for a tokenizer of kind {described}"
    tokens = read("ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in read("ggml.merges")]
    tokenizer = Tokenizer(BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = zip(tokens, read("ggml.token_type"), strict=True)
    control = [AddedToken(token, special=True, normalized=False) for token, kind in kinds if kind == TokenType.CONTROL]
    tokenizer.add_special_tokens(control)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=tokens[read("ggml.bos_token_id")],
        eos_token=tokens[read("ggml.eos_token_id")],
        unk_token=tokens[read("ggml.unknown_token_id")],
        pad_token=tokens[read("ggml.padding_token_id")],
        chat_template=read("chat_template"),
        model_max_length=fields["llama.context_length"].contents(),
        clean_up_tokenization_spaces=False,
    )


def verify_model(folder: Path, question: str, answer: str) -> None:
    """Load `folder` as a user would and check its tokenizer and one greedy answer (CPU, fp32, chat template).

    Raises:
        AssertionError: what is wrong with the folder.
    """
    with redirect_stderr(io.StringIO()):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    verify_tokenizer(tokenizer, model.config.vocab_size)
    got = greedy_answer(model, tokenizer, question)
    assert got == answer, f"{folder}: {question!r} gives {got!r}, not {answer!r}"


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


def greedy_answer(model: GenerationMixin, tokenizer: PreTrainedTokenizerBase, question: str, tokens: int = 16) -> str:
    """The model's greedy answer to `question` under its chat template: at most `tokens` tokens, end token included."""
    prompt = PromptFormat.of(tokenizer)
    ids = torch.tensor([encode(tokenizer, prompt.context("") + prompt.question(question, ""))])
    output = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens)
    return str(tokenizer.decode(output[0, ids.shape[1] :]))

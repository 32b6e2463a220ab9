"""GGUF -> Hugging Face folder: fp32 safetensors and a plain fast tokenizer, and a check of both.

transformers turns the tokenizer inside a Llama GGUF into a CodeLlamaTokenizer. That class has a fill-in-the-middle
state which one hostile text switches on for every later text, and token ids beyond the embedding. So the tokenizer is
built here, from the file's own vocabulary, merges and special tokens.
"""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader, TokenType
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from indexmem.models.prompt import PromptFormat, encode


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
    """Load `folder` as a user would and check one greedy answer of 16 tokens at most (CPU, fp32, chat template).

    Raises AssertionError for another one.
    """
    with redirect_stderr(io.StringIO()):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompt = PromptFormat.of(tokenizer)
    ids = torch.tensor([encode(tokenizer, prompt.context("") + prompt.question(question, ""))])
    output = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=16)
    got = tokenizer.decode(output[0, ids.shape[1] :])
    assert got == answer, f"{folder}: {question!r} gives {got!r}, not {answer!r}"

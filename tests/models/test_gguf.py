from __future__ import annotations

import json
import shutil
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizer_checks import verify_tokenizer
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, CodeLlamaTokenizer, PreTrainedTokenizerFast

from indexmem.models.assets import BUILTIN_MODELS, ensure_model
from indexmem.models.gguf import convert, verify_model
from indexmem.models.prompt import encode

SMOLLM2 = "smollm2-135m-instruct"
VOCAB = 49152
# What SmolLM2's vocabulary has no byte for; planes 4 to 11 too, so the planes above 3 are left out as a whole.
LACKED = "\x04\x06\x13\x14\x16\x1d"
known_text = st.text(st.characters(max_codepoint=0x3FFFF, exclude_categories=["Cs"], exclude_characters=LACKED))


@pytest.fixture(scope="module")
def folder() -> Path:
    return ensure_model(SMOLLM2)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.model
def test_the_converted_model_passes_and_another_answer_would_not(folder: Path) -> None:
    model = BUILTIN_MODELS[SMOLLM2]
    verify_model(folder, model.question, model.answer)
    with pytest.raises(AssertionError, match="Paris"):
        verify_model(folder, model.question, "The capital of France is Rome.")


@pytest.mark.model
def test_the_tokenizer_is_plain(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    verify_tokenizer(tokenizer, VOCAB)
    assert type(tokenizer) is PreTrainedTokenizerFast
    assert len(tokenizer) == tokenizer.vocab_size == VOCAB
    assert tokenizer.clean_up_tokenization_spaces is False
    assert tokenizer.model_max_length == 8192
    assert (tokenizer.unk_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == tokenizer.eos_token_id
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    expected = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"
    assert rendered == expected
    assert [i for i in encode(tokenizer, rendered) if i in (1, 2)] == [1, 2, 1, 2, 1]


@pytest.mark.model
def test_digits_stand_alone_and_words_keep_their_space(tokenizer: PreTrainedTokenizerFast) -> None:
    pieces = tokenizer.convert_ids_to_tokens(encode(tokenizer, "the year 2024"))
    assert pieces == ["the", "Ġyear", "Ġ", "2", "0", "2", "4"]


@pytest.mark.model
@settings(max_examples=200, deadline=None)
@given(text=known_text)
def test_every_text_survives_within_the_vocabulary(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    ids = encode(tokenizer, text)
    assert tokenizer.decode(ids) == text
    assert max(ids, default=0) < VOCAB


@pytest.mark.model
def test_the_tokenizer_that_transformers_would_build_is_rejected(folder: Path) -> None:
    bpe = json.loads((folder / "tokenizer.json").read_text())["model"]
    tokenizer = CodeLlamaTokenizer(vocab=bpe["vocab"], merges=[tuple(merge) for merge in bpe["merges"]])
    with pytest.raises(AssertionError, match=r"token id \d+ has no embedding"):
        verify_tokenizer(tokenizer, VOCAB)


@pytest.mark.model
def test_a_tokenizer_that_one_text_changes_is_rejected(folder: Path) -> None:
    class Stateful(PreTrainedTokenizerFast):
        def encode(self, text: str, **kwargs) -> list[int]:
            if "<FILL_ME>" in text:
                self.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            return super().encode(text, **kwargs)

    with pytest.raises(AssertionError, match="changed how another is encoded"):
        verify_tokenizer(Stateful.from_pretrained(folder), VOCAB)


@pytest.mark.model
def test_a_lossy_tokenizer_is_rejected(folder: Path, tmp_path: Path) -> None:
    for file in folder.glob("*.json"):
        shutil.copy(file, tmp_path)
    description = json.loads((tmp_path / "tokenizer.json").read_text())
    description["normalizer"] = {"type": "NFKC"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(description))
    with pytest.raises(AssertionError, match="comes back as"):
        verify_tokenizer(AutoTokenizer.from_pretrained(tmp_path), VOCAB)


def test_convert_writes_what_the_gguf_holds(tmp_path: Path) -> None:
    hidden, inner, heads, kv_heads = 64, 96, 4, 2
    tokens = ["<end>", "<start>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "th", "the", "42"]
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "llama")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.NORMAL] * (len(tokens) - 2))
    writer.add_token_merges(["t h", "th e", "4 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    generator = np.random.default_rng(0)
    kv = hidden * kv_heads // heads
    shapes = {
        "token_embd": (len(tokens), hidden),
        "output_norm": (hidden,),
        "blk.0.attn_norm": (hidden,),
        "blk.0.ffn_norm": (hidden,),
        "blk.0.attn_q": (hidden, hidden),
        "blk.0.attn_k": (kv, hidden),
        "blk.0.attn_v": (kv, hidden),
        "blk.0.attn_output": (hidden, hidden),
        "blk.0.ffn_gate": (inner, hidden),
        "blk.0.ffn_up": (inner, hidden),
        "blk.0.ffn_down": (hidden, inner),
    }
    weights = {name: generator.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    for name, weight in weights.items():
        writer.add_tensor(f"{name}.weight", weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    convert(tmp_path / "tiny.gguf", tmp_path / "model")

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert model.dtype == torch.float32
    assert np.array_equal(model.model.embed_tokens.weight.detach().numpy(), weights["token_embd"])
    assert np.array_equal(model.model.layers[0].mlp.down_proj.weight.detach().numpy(), weights["blk.0.ffn_down"])
    # GGUF interleaves the two rotary halves of each head; Hugging Face keeps them apart.
    interleaved = weights["blk.0.attn_q"].reshape(heads, hidden // heads // 2, 2, hidden)
    halves = interleaved.swapaxes(1, 2).reshape(hidden, hidden)
    assert np.array_equal(model.model.layers[0].self_attn.q_proj.weight.detach().numpy(), halves)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    verify_tokenizer(tokenizer, model.config.vocab_size)
    assert tokenizer.convert_ids_to_tokens(encode(tokenizer, "<start>the42<end>")) == [
        "<start>",
        "the",
        "4",
        "2",
        "<end>",
    ]
    assert tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False) == "x"

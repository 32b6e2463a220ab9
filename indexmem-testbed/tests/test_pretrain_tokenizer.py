"""The testbed's tokenizer: exact, the same in every place, and short where the tasks are long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizer_training import make_tokenizer

from indexmem.benchmarks.base import BuildContext
from indexmem.benchmarks.ruler.suite import ruler
from indexmem.models.prompt import PromptFormat, encode
from indexmem.texts.documents import load_texts
from indexmem_testbed.tokenizer import VOCABULARY, load_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer()


@given(text=st.text())
def test_text_comes_back(tokenizer, text):
    assert tokenizer.decode(encode(tokenizer, text)) == text or "<s>" in text or "</s>" in text


@given(number=st.integers(10**6, 10**7 - 1))
def test_a_number_is_three_tokens_wherever_it_stands(tokenizer, number):
    alone = encode(tokenizer, str(number))
    assert len(alone) == 3
    for text in (f"is: {number}.", f"\n{number}\n", f"a-{number}, and"):
        ids = encode(tokenizer, text)
        assert any(ids[start : start + 3] == alone for start in range(len(ids)))


@given(name=st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ", min_size=5, max_size=5))
def test_a_name_has_the_same_tokens_at_the_start_of_an_answer(tokenizer, name):
    alone, after = encode(tokenizer, name), encode(tokenizer, f"VAR {name} = ")
    assert any(after[start : start + len(alone)] == alone for start in range(len(after)))


def test_the_packaged_file_is_what_the_texts_give(tokenizer):
    assert len(tokenizer) == VOCABULARY
    assert make_tokenizer().backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()


@pytest.mark.parametrize("length", [1024, 4096])
def test_every_ruler_sample_fits_and_fills_its_length(tokenizer, length):
    build = BuildContext(tokenizer, length, 1, "\n\n".join(load_texts(["essays-train"])))
    prompt = PromptFormat.of(tokenizer)
    for benchmark in ruler():
        (sample,) = benchmark.samples(1, build)
        used = len(encode(tokenizer, prompt.context(sample.context))) + sample.max_new_tokens
        used += len(encode(tokenizer, prompt.question(sample.question, sample.answer_prefix)))
        assert 0.9 * length < used <= length, benchmark.name
        assert len(encode(tokenizer, " ".join(sample.references))) < sample.max_new_tokens, benchmark.name

"""Thinking: the switch of a chat template, and where the answer begins."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import CHAT_TEMPLATE, THINKING_TEMPLATE, tiny_tokenizer

from indexmem.errors import UserError
from indexmem.models.prompt import PromptFormat
from indexmem.models.thinking import answer_in, with_thinking

SHY = CHAT_TEMPLATE.replace("[assistant] ", "[assistant] {% if enable_thinking %}<think>{% endif %}")
TOKENIZER = tiny_tokenizer()


def suffix(template, thinking) -> str:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    found = PromptFormat.of(with_thinking(tokenizer, thinking)).suffix
    assert PromptFormat.of(tokenizer).suffix == suffix_off(template), "the tokenizer itself stays as it was"
    return found


def suffix_off(template) -> str:
    return " [end]\n[assistant] " + ("<think></think>" if template == THINKING_TEMPLATE else "")


@pytest.mark.parametrize(
    ("template", "on", "default"), [(THINKING_TEMPLATE, "", ""), (SHY, "<think>", "")], ids=["thinks", "asks"]
)
def test_the_switch_is_on_off_or_the_template_s_own(template, on, default):
    assert suffix(template, False) == suffix_off(template)
    assert suffix(template, True) == " [end]\n[assistant] " + on
    assert suffix(template, "default") == " [end]\n[assistant] " + default


def test_a_template_of_several_is_switched_whole():
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = {"default": THINKING_TEMPLATE, "tool_use": THINKING_TEMPLATE}
    assert "<think>" not in PromptFormat.of(with_thinking(tokenizer, True)).suffix


@pytest.mark.parametrize("template", [CHAT_TEMPLATE, None])
def test_a_template_without_a_switch_is_refused_where_thinking_is_asked_for(template):
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    with pytest.raises(UserError, match=r"decoding\.thinking=true: the model's chat template does not read"):
        with_thinking(tokenizer, True)
    assert PromptFormat.of(with_thinking(tokenizer, "default")) == PromptFormat.of(tokenizer)


def heard(text: str, prompt_end: str = "[assistant] ") -> str:
    ids = TOKENIZER.encode(text, add_special_tokens=False)
    return TOKENIZER.decode(answer_in(TOKENIZER, prompt_end, ids))


WORDS = st.text(alphabet="ab \n{}\\1é", max_size=30)


@given(thought=WORDS, answer=WORDS, opens=st.booleans())
def test_the_answer_is_what_follows_the_thinking_part(thought, answer, opens):
    assert heard("<think>" * opens + thought + "</think>" + answer) == answer
    assert heard("<think>" + thought) == ""
    assert heard(thought, "[assistant] <think>\n") == "", "some templates open the thinking part themselves"
    assert heard(thought, "[assistant] <think>\n\n</think>\n\n") == thought
    assert heard(thought) == thought


def test_marks_among_the_special_tokens_are_found():
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>"]})
    ids = tokenizer.encode("<think>\nso\n</think>\n\nit is", add_special_tokens=False)
    assert "think" not in tokenizer.decode(ids, skip_special_tokens=True)
    assert tokenizer.decode(answer_in(tokenizer, "", ids), skip_special_tokens=True).strip() == "it is"

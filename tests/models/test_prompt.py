"""What a chat template puts around a text: templates of all manners, and those of which it cannot be told."""

from __future__ import annotations

import pytest
from tiny_tokenizers import CHAT_TEMPLATE, tiny_tokenizer
from tokenizers.processors import TemplateProcessing

from indexmem.errors import UserError
from indexmem.models.prompt import PromptFormat

AROUND = "<s>[user] {} [end]\n{{% if add_generation_prompt %}}[assistant] {{% endif %}}"
PARTS = "{% for part in messages[0]['content'] %}{{ part['text'] }}{% endfor %}"
EXPECTED = PromptFormat(prefix="<s>[user] ", suffix=" [end]\n[assistant] ")


def format_of(template: str) -> PromptFormat:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    return PromptFormat.of(tokenizer)


@pytest.mark.parametrize(
    "template",
    [
        CHAT_TEMPLATE,
        AROUND.format("{{ messages[0]['content'] | trim }}"),
        AROUND.format(PARTS),
        AROUND.format("{{ messages[0]['content'][0]['text'] }}"),
        "{% if messages[0]['content'] is string %}{{ raise_exception('parts!') }}{% endif %}" + AROUND.format(PARTS),
    ],
)
def test_prefix_and_suffix(template):
    assert format_of(template) == EXPECTED


@pytest.mark.parametrize(
    "shown",
    [
        "{{ messages[0]['content'] | upper }}",
        "{{ messages[0]['content'] | lower }}",
        "{{ messages[0]['content'] | title | reverse }}",
        "something else",
        "{{ messages[0]['content'] }} (again: {{ messages[0]['content'] }})",
        "{{ messages[0]['content'][:4] }}",
        "{{ raise_exception('no users here') }}",
    ],
)
def test_a_template_that_changes_the_text_is_refused(shown):
    with pytest.raises(UserError, match="does not show a user's text once and unchanged"):
        format_of(AROUND.format(shown))


def test_the_message_shows_what_became_of_the_text():
    with pytest.raises(UserError, match="no users here"):
        format_of("{{ raise_exception('no users here') }}")


@pytest.mark.parametrize(
    ("template", "prefix"),
    [("<s> $A", "<s>"), ("<s> $A [UNK]", "<s>"), ("$A [UNK]", ""), ("<s> [UNK] $A <s>", "<s>[UNK]")],
)
def test_without_chat_an_end_mark_is_not_put_before_the_text(template, prefix):
    tokenizer = tiny_tokenizer()
    ids = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("<s>", "[UNK]")]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=template, special_tokens=ids)
    assert PromptFormat.of(tokenizer, chat=False) == PromptFormat(prefix=prefix, suffix="")

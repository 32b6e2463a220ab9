"""Models that think before they answer: the switch of their chat template, and where the answer begins.

Templates of Qwen3, SmolLM3 and others read a variable, `enable_thinking`. Prompts are rendered with it off
(`models.prompt`), so another setting is written into the template itself: whoever renders a prompt, and the hash of a
benchmark's build, then has it.
"""

from __future__ import annotations

from bisect import bisect_left
from copy import copy
from typing import TYPE_CHECKING

from indexmem.config.decoding import Thinking
from indexmem.errors import UserError
from indexmem.models.prompt import SWITCH, PromptFormat

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

OPENS, CLOSES = "<think>", "</think>"
# As Jinja writes them. A variable that is assigned what nobody defined is not defined: the template decides.
VALUES = {True: "true", "default": "not_defined_anywhere"}


def with_thinking(tokenizer: PreTrainedTokenizerBase, thinking: Thinking) -> PreTrainedTokenizerBase:
    """The tokenizer with this setting of its chat template; a template's own is whatever it does when nobody says.

    Raises UserError where a model is to think and its template knows no such switch.
    """
    if thinking is False or (tokenizer.chat_template is None and thinking == "default"):
        return tokenizer
    assigned = f"{{% set {SWITCH} = {VALUES[thinking]} %}}"
    switched, template = copy(tokenizer), tokenizer.chat_template
    if isinstance(template, dict):
        switched.chat_template = {name: assigned + text for name, text in template.items()}
    elif template is not None:
        switched.chat_template = assigned + template
    if thinking is True and PromptFormat.of(switched) == PromptFormat.of(tokenizer):
        raise UserError(
            f"decoding.thinking=true: the model's chat template does not read {SWITCH}, so it cannot be told to think. "
            "Use a model that can, such as Qwen/Qwen3-8B, or decoding.thinking=default, with which a model that always "
            "thinks is scored by what follows."
        )
    return switched


def answer_in(tokenizer: PreTrainedTokenizerBase, prompt_end: str, token_ids: list[int]) -> list[int]:
    """The tokens after the thinking part: all where there is none, and none where it did not come to an end.

    `prompt_end`: what the prompt ends with, since some templates open the thinking part themselves.
    """

    def closed(count: int) -> bool:  # special tokens are kept: some tokenizers have the marks among them
        return CLOSES in str(tokenizer.decode(token_ids[:count], skip_special_tokens=False))

    if closed(len(token_ids)):
        return token_ids[bisect_left(range(len(token_ids)), True, key=closed) :]
    unclosed = (prompt_end + str(tokenizer.decode(token_ids, skip_special_tokens=False))).rpartition(CLOSES)[2]
    return [] if OPENS in unclosed else token_ids

"""A model without its tokenizer, or with another one's, is refused before anything is made with it."""

from __future__ import annotations

import pytest
from tiny_models import FULL_FAMILIES, SLIDING_FAMILIES, save_tiny_model
from tiny_tokenizers import TEXT

from indexmem.config.load import validate
from indexmem.config.schema import ModelConfig
from indexmem.errors import UserError
from indexmem.evaluate.grid import plan
from indexmem.models.backbone import load_tokenizer


def without_tokenizer(folder):
    for path in [*folder.glob("tokenizer*"), *folder.glob("chat_template*")]:
        path.unlink()
    return folder


@pytest.mark.parametrize("family", [*FULL_FAMILIES, *SLIDING_FAMILIES])
def test_a_folder_without_tokenizer_files_is_refused(family, tmp_path):
    folder = save_tiny_model(tmp_path / "model", family)
    load_tokenizer(ModelConfig(id=str(folder)))
    with pytest.raises(UserError, match=r"tokenizer.*Expected the files that it was saved with"):
        load_tokenizer(ModelConfig(id=str(without_tokenizer(folder))))


def test_ids_beyond_the_embeddings_are_refused(tmp_path):
    folder = save_tiny_model(tmp_path / "model", vocab_size=100)
    with pytest.raises(UserError, match="has embeddings for 100 tokens, and its tokenizer has ids up to 400"):
        load_tokenizer(ModelConfig(id=str(folder)))


def test_special_tokens_of_the_template_count(tmp_path):
    """Of the tokenizer's own tokens the last is 399; <s> and [UNK] lie behind them."""
    folder = save_tiny_model(tmp_path / "model", vocab_size=400)
    with pytest.raises(UserError, match="ids up to 40"):
        load_tokenizer(ModelConfig(id=str(folder)))


def test_a_plan_says_so(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    folder = without_tokenizer(save_tiny_model(tmp_path / "model"))
    grid = {"methods": ["full"], "length": 256, "haystack": str(tmp_path / "text.txt"), "samples": 1}
    with pytest.raises(UserError, match="has no tokenizer"):
        plan(validate({"model": {"id": str(folder)}, "grid": grid, "run": {"root": str(tmp_path)}}, "test"))

"""Documents to distill on: what training reads, written as text."""

import json

import pytest

from indexmem.errors import UserError
from indexmem.models.prompt import encode
from indexmem_testbed.cli import main
from indexmem_testbed.config import PretrainConfig
from indexmem_testbed.corpus import documents, write_documents
from indexmem_testbed.tokenizer import load_tokenizer


@pytest.fixture
def config():
    return PretrainConfig(mixture={"niah_multikey_1": 1.0, "vt": 1.0, "text": 5.0})


def test_documents_are_what_training_reads_as_text(config, tmp_path):
    tokenizer = load_tokenizer()
    found = list(documents(config, 3, 512))
    assert len(set(found)) == 3 and list(documents(config, 3, 512)) == found
    for text in found:
        ids = encode(tokenizer, text)
        assert 100 < len(ids) <= 512 and ids[0] == tokenizer.bos_token_id and ids[-1] == tokenizer.eos_token_id
    path = write_documents(config, 2, 512, tmp_path / "documents.jsonl")
    assert [json.loads(line)["text"] for line in path.read_text().splitlines()] == found[:2]


def test_documents_that_cannot_be_made_are_refused_and_nothing_is_written(config, tmp_path):
    path = tmp_path / "documents.jsonl"
    with pytest.raises(UserError, match="0 of 2 documents fit into 20 tokens"):
        write_documents(config, 2, 20, path)
    with pytest.raises(UserError, match="no task, only text"):
        write_documents(PretrainConfig(mixture={"text": 1.0}), 2, 512, path)
    folder = tmp_path / "new"
    assert main(["sweeps/testbed.yaml", "--documents", str(folder / "d.jsonl"), "--dry-run"]) == 0
    assert not path.exists() and not folder.exists()

"""Corpora on disk: the same documents and run names as in memory, copied once, and any document at any time."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from indexmem.config.distill import DistillConfig
from indexmem.config.load import load, validate, with_overrides
from indexmem.config.modules import Across
from indexmem.config.spec import content_hash
from indexmem.config.text import BUILT_IN, TextConfig
from indexmem.distill import corpus, runs
from indexmem.distill.corpus import JoinedTexts, open_corpora, open_corpus
from indexmem.distill.runs import DistillRun
from indexmem.errors import UserError
from indexmem.texts.documents import documents_of, text_state


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("INDEXMEM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "texts"


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "texts").mkdir()
    rows = [{"text": f"document {number} " * 20} for number in range(500)]
    (tmp_path / "texts" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"text": " "}\n')
    pq.write_table(pa.table({"text": ["á\r\nb", None], "body": ["one", "two"]}), tmp_path / "texts" / "b.parquet")
    return tmp_path / "texts"


def test_documents_and_fingerprint_are_those_of_the_list(folder, monkeypatch):
    monkeypatch.setattr(corpus, "BATCH_CHARACTERS", 3000)
    opened, expected = open_corpus(TextConfig(name=str(folder))), documents_of(str(folder))
    assert len(expected) == 501 and list(opened.documents) == expected
    assert opened.fingerprint == content_hash(expected)
    assert [opened.documents[-1], *opened.documents[498:]] == [expected[-1], *expected[498:]]


def test_a_text_is_read_once_until_it_changes(folder, cache, monkeypatch):
    text = TextConfig(name=str(folder))
    first = open_corpus(text)
    with monkeypatch.context() as patch:
        patch.setattr(corpus, "read_documents", None)
        assert open_corpus(text).fingerprint == first.fingerprint
    (folder / "c.txt").write_text("more")
    assert open_corpus(text).documents[-1] == "more"
    stat = (folder / "c.txt").stat()
    (folder / "c.txt").write_text("MORE")
    os.utime(folder / "c.txt", ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    assert open_corpus(text).documents[-1] == "MORE"
    assert open_corpus(TextConfig(name=str(folder / "b.parquet"), column="body")).documents[:] == ["one", "two"]
    assert sorted(path.suffix for path in cache.iterdir()) == [""] * 4 + [".lock"] * 4


def test_a_copy_that_was_interrupted_is_made_again(folder, cache, monkeypatch):
    text = TextConfig(name=str(folder))

    def interrupted(*_):
        yield "one document"
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(corpus, "read_documents", interrupted)
        with pytest.raises(KeyboardInterrupt):
            open_corpus(text)
    assert [path.suffix for path in cache.iterdir()] == [".lock"]
    assert len(open_corpus(text).documents) == 501


def test_what_cannot_be_read_is_told_and_leaves_nothing(folder, cache):
    (folder / "c.jsonl").write_text('{"text": "\\ud83d"}\n')
    with pytest.raises(UserError, match=r"c\.jsonl, line 1 has half a character"):
        open_corpus(TextConfig(name=str(folder)))
    (folder / "empty.txt").write_text(" ")
    with pytest.raises(UserError, match="holds no text"):
        open_corpus(TextConfig(name=str(folder / "empty.txt")))
    assert {path.suffix for path in cache.iterdir()} == {".lock"}


def test_built_in_texts_stay_in_memory(cache):
    assert len(open_corpora(TextConfig.named("essays-train", "essays-heldout"))) == 49
    assert not cache.exists()


@given(st.lists(st.lists(st.text(max_size=3), min_size=1), min_size=1), st.data())
def test_joined_texts_are_one_sequence(texts, data):
    joined, flat = JoinedTexts(texts), [document for text in texts for document in text]
    assert list(joined) == flat and len(joined) == len(flat)
    assert [[flat[number] for number in numbers] for numbers in joined.ranges] == texts
    number = data.draw(st.integers(-len(flat), len(flat) - 1))
    assert joined[number] == flat[number] and joined[number:] == flat[number:]
    with pytest.raises(IndexError):
        joined[len(flat)]


def test_a_data_set_of_the_hub_is_read_by_its_settings(folder):
    """A folder instead of the hub, which no test can reach: `datasets` reads both."""
    (folder / "b.parquet").unlink()
    text = TextConfig(hub=str(folder), revision="abc")
    assert open_corpus(text).documents[:3] == [f"document {number} " * 20 for number in range(3)]
    with pytest.raises(UserError, match=r"has no text. Expected it in 'body', got {'text': 'document 0 d"):
        open_corpus(TextConfig(hub=str(folder), revision="abc", column="body"))
    with pytest.raises(UserError, match=f"'{folder}' cannot be had: .*test"):
        open_corpus(TextConfig(hub=str(folder), revision="abc", split="test"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{nme: x}", r"unknown key 'distill.texts.0.nme'. Did you mean 'name'\?"),
        ("{column: x}", "has a name or a hub id"),
        ("{name: x, hub: y}", "has a name or a hub id"),
        ("{hub: org/name}", r"name the commit.*revision: COMMIT"),
        ("{name: x, split: test}", "are of data sets on the hub"),
        ("{name: x, weight: 0}", "'distill.texts.0.weight': input should be greater than 0"),
        ("{name: x, weight: .inf}", "'distill.texts.0.weight': input should be a finite number"),
        (
            "a, {name: x, weight: 1}, {hub: b, revision: c}",
            r"'distill.texts': .*have none: a, b \(hub\)\. Give each one",
        ),
    ],
)
def test_mistakes_in_a_text(tmp_path, text, message):
    (tmp_path / "spec.yaml").write_text(f"distill: {{texts: [{text}]}}")
    with pytest.raises(UserError, match=message):
        load(tmp_path / "spec.yaml")


def test_paths_of_texts_with_settings_become_absolute(folder, monkeypatch):
    monkeypatch.chdir(folder)
    Path("spec.yaml").write_text("distill: {texts: [{name: b.parquet, column: body}, a.jsonl]}")
    assert [text.name for text in load("spec.yaml").distill.texts] == [f"{folder}/b.parquet", f"{folder}/a.jsonl"]


def test_a_text_is_written_as_it_was_before_there_were_weights_and_one_with_a_weight_in_short():
    as_written = ["a", {"name": "b", "column": "c"}, {"hub": "d", "revision": "e"}]
    plain = DistillConfig(texts=as_written)
    rest = {"hub": None, "subset": None, "split": "train", "revision": None}
    dumped = plain.model_dump(mode="json")["texts"]
    assert dumped == [
        "a",
        {**rest, "name": "b", "column": "c"},
        {**rest, "name": None, "column": None, "hub": "d", "revision": "e"},
    ]
    weighted = [{"name": "a", "weight": 0.5}, {"hub": "d", "revision": "e", "weight": 2.0}]
    assert DistillConfig(texts=weighted).model_dump(mode="json")["texts"] == weighted
    assert DistillConfig(texts=dumped) == plain


def test_the_default_is_the_mixture_with_weights_that_sum_to_one():
    default = DistillConfig()
    assert all(text.name in BUILT_IN for text in default.texts)
    assert sum(text.weight for text in default.texts) == pytest.approx(1)
    assert DistillConfig(**default.model_dump(mode="json")) == default
    assert not {"essays", "essays-heldout"} & {text.name for text in default.texts}, "what is evaluated on"


def test_a_built_in_text_is_meant_even_beside_a_folder_of_its_name(folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    Path("code").mkdir()
    Path("spec.yaml").write_text("distill: {texts: [code, ./code, {name: texts/a.jsonl}]}")
    texts = load("spec.yaml").distill.texts
    assert [text.name for text in texts] == ["code", f"{folder.parent}/code", f"{folder}/a.jsonl"]


def test_a_data_set_of_the_hub_is_copied_once_whatever_its_weight():
    texts = [TextConfig(hub="org/name", revision="abc", weight=weight) for weight in (None, 0.1, 0.2)]
    assert text_state(texts[0]) == text_state(texts[1]) == text_state(texts[2])


@pytest.mark.model
def test_runs_keep_the_names_that_they_had(monkeypatch):
    """Known ids: finished trainings are found by them, and grids that use them. Given the same model."""
    monkeypatch.setattr(runs, "model_fingerprint", lambda model: "the same model")
    distilling = {"distill": {"texts": ["essays-heldout"], "length": 64}}
    as_before = {"indexer": {"pair_term": True, "token_term": 0}, "target": {"source": "logprobs", "loss": "kl"}}
    spec = validate(as_before | distilling, "test")
    assert DistillRun.of(spec).id == "b7d329ec9a6a07fd"
    for same in (["indexer.share=head"], ["indexer.floor=0.3"], ["indexer.share=head", "indexer.floor=0.3"]):
        assert DistillRun.of(with_overrides(spec, same)).id == "b7d329ec9a6a07fd", same
    changes = (
        *(["distill.packing=true"], ["indexer.token_term=8"], ["target.loss=mse"], ["target.source=reconstruction"]),
        *(["indexer.share=layer"], ["indexer.share=model"], ["indexer.share=model", "indexer.floor=0.3"]),
        ["indexer.pair_term=false", "indexer.token_term=8"],
    )
    ids = {DistillRun.of(with_overrides(spec, change)).id for change in changes}
    assert len(ids - {"b7d329ec9a6a07fd"}) == len(changes)


def test_the_recipes_of_the_training_page_are_valid():
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    recipes = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    assert len(recipes) == 3
    for recipe in recipes:
        assert all(text.weight for text in validate(yaml.safe_load(recipe), "recipe").distill.texts)


@pytest.mark.model
def test_a_run_is_named_by_what_share_means():
    spec = validate({"distill": {"texts": ["essays-heldout"], "length": 64}}, "test")  # calibrated: all heads share
    named = {share: DistillRun.of(with_overrides(spec, [f"indexer.share={share}"])).id for share in Across.__args__}
    assert DistillRun.of(spec).id == named["model"]
    assert len(set(named.values())) == 3
    layer = with_overrides(spec, ["indexer.scope=layer"])  # one row per layer: none can
    assert DistillRun.of(layer).id == DistillRun.of(with_overrides(layer, ["indexer.share=head"])).id

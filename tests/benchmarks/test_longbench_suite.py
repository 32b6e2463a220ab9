"""LongBench's sets from tiny local files: prompts word for word, cuts, labels, and what a spec may say."""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizers import TEXT, tiny_tokenizer

from indexmem.benchmarks.base import BuildContext, build_hash
from indexmem.benchmarks.longbench.prompts import Parts, official, without_end, without_middle
from indexmem.benchmarks.longbench.sets import SETS, SETS_E, bucket
from indexmem.benchmarks.registry import make_benchmarks
from indexmem.config.schema import BenchmarkConfig
from indexmem.errors import UserError
from indexmem.models.prompt import PromptFormat, encode

# sha256 of the published dataset2prompt.json (THUDM/LongBench at 2e00731), as JSON with sorted keys.
PUBLISHED_PROMPTS = "e7d865d712fe45e2455f5e864ac474001d7758d68d349e76ffbcdd382483358f"


def item(number: int = 0, **changes):
    usual = {
        "input": f"What is item {number}?",
        "context": f"Item {number} is {'a thing ' * 40}{{braces}}.",
        "answers": ["a thing", "nothing"],
        "length": 3999 + number,
        "dataset": "any",
        "language": "en",
        "all_classes": None,
        "_id": str(number),
    }
    return usual | changes


def write(folder, name: str, items):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in items), encoding="utf-8")
    return folder


def build(length: int = 4000, chat: bool = True) -> BuildContext:
    return BuildContext(tokenizer=tiny_tokenizer("byte_level", chat), length=length, seed=42, haystack=TEXT)


def make(name: str, **params):
    return make_benchmarks([BenchmarkConfig(name=name, params=params)])


def one(name: str, tmp_path, items, **params):
    (benchmark,) = make(f"longbench_{name}", path=str(write(tmp_path, name, items)), **params)
    return benchmark


def rendered(sample, tokenizer) -> str:
    prompt = PromptFormat.of(tokenizer, chat=sample.chat)
    return prompt.context(sample.context) + prompt.question(sample.question, sample.answer_prefix)


def test_prompts_are_the_published_ones_letter_for_letter():
    templates = {name: spec.prompt for name, spec in SETS.items()}
    ours = {name: t.head + "{context}" + t.rest + t.question + t.answer_prefix for name, t in sorted(templates.items())}
    assert hashlib.sha256(json.dumps(ours, ensure_ascii=False).encode()).hexdigest() == PUBLISHED_PROMPTS
    assert ours.keys() == SETS.keys()


def test_the_suites_have_the_published_sets():
    assert len(make("longbench")) == len(SETS) == 21
    assert len(make("longbench_e")) == len(SETS_E) == 13
    assert sum(benchmark.size for benchmark in make("longbench")) == 4750
    assert {b.name for b in make("longbench_e", sets=["qasper", "lcc"])} == {"longbench_e_qasper", "longbench_e_lcc"}
    with pytest.raises(UserError, match=r"no set 'qasperr'. Did you mean 'qasper'"):
        make("longbench", sets=["qasperr"])
    with pytest.raises(UserError, match="LongBench-E has no set 'narrativeqa'"):
        make("longbench_e", sets=["narrativeqa"])


def test_the_official_prompt_is_one_user_turn(tmp_path):
    """All of the published text, "Answer:" included, stands before the end of the user's turn."""
    benchmark = one("qasper", tmp_path, [item(0)])
    (sample,) = benchmark.samples(5, build())
    text = rendered(sample, build().tokenizer)
    assert text.endswith("Question: What is item 0?\n\nAnswer: [end]\n[assistant] ")
    assert text.count('write "unanswerable"') == 2
    assert "{braces}" in sample.context, "braces in a context are text"
    assert "Do not provide any explanation" not in sample.context.rpartition("Item 0")[2], "read after eviction"
    assert (sample.chat, sample.stop, sample.max_new_tokens, benchmark.protocol) == (True, (), 128, "official")


def test_kvpress_compresses_the_instruction_and_opens_the_answer(tmp_path):
    benchmark = one("qasper", tmp_path, [item(0)], protocol="kvpress")
    (sample,) = benchmark.samples(5, build())
    assert sample.context.endswith("Do not provide any explanation.\n\n")
    assert (sample.question, sample.answer_prefix) == ("Question: What is item 0?\n\n", "Answer:")
    assert (sample.max_new_tokens, benchmark.protocol) == (148, "kvpress")


FEW_SHOT = sorted(name for name, spec in SETS.items() if not spec.chat)


def test_few_shot_and_code_sets_have_no_chat_template():
    assert FEW_SHOT == ["lcc", "lsht", "repobench-p", "samsum", "trec", "triviaqa"]


@pytest.mark.parametrize("name", FEW_SHOT)
def test_without_a_chat_template_the_text_goes_as_it_is(name, tmp_path):
    """lm-eval #2932 and RULER #100: a template around few-shot examples lowers scores."""
    benchmark = one(name, tmp_path, [item(0, input="Question: who?\nType:")])
    (sample,) = benchmark.samples(1, build())
    text = rendered(sample, build().tokenizer)
    assert "[user]" not in text
    assert "[assistant]" not in text
    expected = SETS[name].prompt.question.replace("{input}", "Question: who?\nType:") + SETS[name].prompt.answer_prefix
    assert text.endswith(expected)


def test_kvpress_moves_the_cue_of_few_shot_inputs_behind_the_template(tmp_path):
    (sample,) = one("trec", tmp_path, [item(0, input="who?\nType:")], protocol="kvpress").samples(1, build())
    assert (sample.question, sample.answer_prefix, sample.chat) == ("who?\n", "Type:", True)


def test_samsum_stops_at_a_line_end_but_not_before_a_token(tmp_path):
    (sample,) = one("samsum", tmp_path, [item(0)]).samples(1, build())
    assert (sample.stop, sample.min_new_tokens) == (("\n",), 1)
    (other,) = one("samsum", tmp_path, [item(0)], protocol="kvpress").samples(1, build())
    assert (other.stop, other.min_new_tokens) == ((), 0)


def test_only_the_first_line_counts_where_published(tmp_path):
    """OpenCompass #623: few-shot answers run on into the next example."""
    few = one("triviaqa", tmp_path, [item(0, answers=["Paris"])])
    (sample,) = few.samples(1, build())
    assert few.score("\n\nParis\nPassage: and so on", sample) == 1.0
    usual = one("hotpotqa", tmp_path, [item(0, answers=["Paris"])])
    (sample,) = usual.samples(1, build())
    assert usual.score("Paris\nand so on", sample) < 1.0


def test_the_best_of_all_answers_counts(tmp_path):
    """lm-eval #2983: only the first answer was compared."""
    benchmark = one("narrativeqa", tmp_path, [item(0, answers=["wrong", "the old bridge"])])
    (sample,) = benchmark.samples(1, build())
    assert benchmark.score("old bridge", sample) == 1.0


@pytest.mark.parametrize(("compat", "score"), [(True, 0.5), (False, 1.0)])
def test_compat_chooses_the_published_classification_and_another_cell(tmp_path, compat, score):
    classes = ["Human", "Human being", "Human being alive"]
    rows = [item(0, answers=["Human being alive"], all_classes=classes)]
    benchmark = one("trec", tmp_path, rows, compat=compat)
    (sample,) = benchmark.samples(1, build())
    assert benchmark.score("Human being alive\nQuestion:", sample) == score
    assert build_hash(benchmark, build()) != build_hash(replace(benchmark, compat=not compat), build())


def test_labels_name_what_a_report_groups_by(tmp_path):
    benchmark = one("dureader", tmp_path, [item(0), item(1), item(4001)])
    labels = [sample.labels for sample in benchmark.samples(9, build())]
    assert labels[0] == {"category": "multi-document QA", "set": "dureader", "language": "zh", "bucket": "0-4k"}
    assert [label["bucket"] for label in labels] == ["0-4k", "4-8k", "8k+"]
    assert [bucket(n) for n in (3999, 4000, 7999, 8000)] == ["0-4k", "4-8k", "4-8k", "8k+"]


def test_items_come_from_a_folder_its_data_folder_or_the_archive(tmp_path):
    write(tmp_path / "plain", "qasper_e", [item(0)])
    write(tmp_path / "unpacked" / "data", "qasper_e", [item(0)])
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.write(tmp_path / "plain" / "qasper_e.jsonl", "data/qasper_e.jsonl")
    hashes = set()
    for path in ("plain", "unpacked", "data.zip"):
        (benchmark,) = make("longbench_e_qasper", path=str(tmp_path / path))
        assert benchmark.name == "longbench_e_qasper"
        hashes.add(build_hash(benchmark, build()))
    assert len(hashes) == 1, "equal items, equal build"


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{not json", "line 2: not valid JSON"),
        ('["a list"]', "line 2: expected an object with the fields input"),
        (json.dumps(item(0) | {"answers": "one"}), "line 2: 'answers' must be a list, got 'one'"),
        (json.dumps({"input": "x"}), "line 2: the field 'context' is missing"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, complaint):
    (tmp_path / "lcc.jsonl").write_text(json.dumps(item(0)) + "\n" + line + "\n")
    (benchmark,) = make("longbench_lcc", path=str(tmp_path))
    with pytest.raises(UserError, match="lcc.jsonl, " + complaint):
        list(benchmark.samples(1, build()))


def test_what_cannot_be_had_is_said_with_what_to_type(tmp_path):
    (benchmark,) = make("longbench_lcc", path=str(tmp_path))
    with pytest.raises(UserError, match=r"has no lcc.jsonl. Expected the files of LongBench's data.zip"):
        list(benchmark.samples(1, build()))
    (benchmark,) = make("longbench_lcc", path="nobody/nothing")
    with pytest.raises(UserError, match=r"path=FOLDER with data.zip unpacked"):
        list(benchmark.samples(1, build()))


def numbered(count: int) -> str:
    return " ".join(f"w{n}" for n in range(count))


@settings(max_examples=25)
@given(limit=st.integers(60, 400), chat=st.booleans())
def test_the_middle_is_left_out_and_the_rest_fits(limit, chat):
    """lm-eval #2983: prompts were cut at the left, which loses the instruction."""
    tokenizer = tiny_tokenizer()
    prompt = PromptFormat.of(tokenizer, chat=chat)
    parts = official(SETS["lcc"].prompt, numbered(300), "")
    cut = without_middle(parts, tokenizer, prompt, limit)
    assert cut.tokens(tokenizer, prompt) <= limit
    assert cut.question == parts.question
    assert cut.context.startswith("Please")
    assert cut.context.endswith("299"), "a character is a token here: the last word may be cut"
    room = limit - Parts("", "", "").tokens(tokenizer, prompt)
    assert len(encode(tokenizer, cut.context + cut.question)) >= room - 4, "no more is cut than must be"


def test_a_question_longer_than_half_keeps_its_end():
    tokenizer = tiny_tokenizer()
    prompt = PromptFormat.of(tokenizer)
    cut = without_middle(Parts("ctx " * 50, numbered(200), ""), tokenizer, prompt, 100)
    assert cut.question.endswith("w199")
    assert cut.tokens(tokenizer, prompt) <= 100


def test_kvpress_cuts_the_end_of_the_context():
    tokenizer = tiny_tokenizer()
    prompt = PromptFormat.of(tokenizer)
    cut = without_end(Parts(numbered(300), "why?", "Answer:"), tokenizer, prompt, 120)
    assert cut.context.startswith("w0 w1")
    assert 115 <= cut.tokens(tokenizer, prompt) <= 120
    assert (cut.question, cut.answer_prefix) == ("why?", "Answer:")


def test_what_fits_is_not_touched(tmp_path):
    benchmark = one("lcc", tmp_path, [item(0)])
    (sample,) = benchmark.samples(1, build())
    assert sample.context == SETS["lcc"].prompt.head + item(0)["context"]
    with pytest.raises(UserError, match="does not fit into 64 tokens"):
        list(benchmark.samples(1, build(64)))

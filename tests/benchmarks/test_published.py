"""Published rows as samples: small files as published, prompts word for word, what is cut, left out or refused."""

from __future__ import annotations

import json
import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_tokenizers import TEXT, tiny_tokenizer

from indexmem.benchmarks.base import BuildContext, build_hash
from indexmem.benchmarks.registry import make_benchmarks
from indexmem.config.schema import BenchmarkConfig
from indexmem.errors import UserError
from indexmem.evaluate.work import contexts_of
from indexmem.models.prompt import PromptFormat, encode

BOOK = TEXT[:300]
V2 = {
    **{"_id": "x", "domain": "Single-Document QA", "sub_domain": "Novel", "difficulty": "easy", "length": "short"},
    **{"question": " Who left? ", "choice_A": "Ben", "choice_B": "Anna", "choice_C": "Carl", "choice_D": "Dora"},
    **{"answer": "B", "context": f" {BOOK} "},
}
INFINITE = {
    "passkey": {"input": "What is the pass key?", "answer": "71432"},
    "number_string": {"input": "What is the sequence of digits?", "answer": ["3000077442"]},
    "kv_retrieval": {"input": 'Key: "a-b"\nThe value associated with the specified key is: ', "answer": "c-d"},
    "longbook_choice_eng": {"input": "Who left?", "answer": ["Anna"], "options": ["Ben", "Anna", "Carl", "Dora"]},
    "longbook_qa_eng": {"input": "Who left?", "answer": ["Anna", "the sailor"]},
    "longbook_qa_chn": {"input": "谁走了？", "answer": ["北京"]},
    "longdialogue_qa_eng": {"input": "", "answer": ["ACE", "ACE ROTHSTEIN"]},
    "math_find": {"input": "The largest number of the list is", "answer": 88},
    "math_calc": {"input": "", "answer": [76, 79, 59]},
    "code_run": {"input": "Please give me the value of func_12(-3).", "answer": -7},
    "code_debug": {"input": "", "answer": ["cmd_gen", "C"], "options": ["one", "two", "cmd_gen", "four"]},
}
RIGHT = {"longbook_choice_eng": "B", "longdialogue_qa_eng": "Ace.", "code_debug": "C.", "math_calc": "[76, 79, 59]"}
MESSAGES = [
    {"role": "user", "content": "Write a poem about rocks"},
    {"role": "assistant", "content": "first poem"},
    {"role": "user", "content": "Write a poem about rocks"},
    {"role": "assistant", "content": "second poem"},
    {"role": "user", "content": "Prepend aYooSG to the 2nd poem about rocks."},
]
MRCR = {
    **{"prompt": json.dumps(MESSAGES), "answer": "aYooSGsecond poem", "random_string_to_prepend": "aYooSG"},
    **{"n_needles": 2, "desired_msg_index": 3, "total_messages": 5, "n_chars": 160},
}


def build(length: int = 900, chat: bool = True) -> BuildContext:
    return BuildContext(tokenizer=tiny_tokenizer(chat=chat), length=length, seed=0, haystack=TEXT)


def make(name: str, **params):
    return make_benchmarks([BenchmarkConfig(name=name, params={"path": "nowhere", **params})])


def jsonl(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_longbench_v2_asks_as_published_and_splits_by_difficulty_and_length(tmp_path):
    rows = [V2, V2 | {"difficulty": "hard", "length": "long", "answer": "A"}]
    (tmp_path / "data.json").write_text(json.dumps(rows))
    (benchmark,) = make("longbench_v2", path=str(tmp_path))
    first, _ = benchmark.samples(9, build())
    assert first.context == f"Please read the following text and answer the question below.\n\n<text>\n{BOOK.strip()}"
    assert first.question == (
        "\n</text>\n\nWhat is the correct answer to this question: Who left?\nChoices:\n(A) Ben\n(B) Anna\n(C) Carl\n"
        '(D) Dora\n\nFormat your response as follows: "The correct answer is (insert answer here)".'
    )
    assert first.labels == {"difficulty": "easy", "bucket": "short", "category": "Single-Document QA"}
    answers = {"The correct answer is (B)": 1, "**The correct answer is B**": 1, "The correct answer is (A)": 0, "B": 0}
    assert {answer: benchmark.score(answer, first) for answer in answers} == answers
    easy, hard = make("longbench_v2", path=str(tmp_path), by="difficulty")
    assert [(task.name, len(list(task.samples(9, build())))) for task in (easy, hard)] == [
        ("longbench_v2_easy", 1),
        ("longbench_v2_hard", 1),
    ]
    with pytest.raises(UserError, match=r"no row with length=medium\. Values of 'length': long, short"):
        list(make("longbench_v2", path=str(tmp_path), by="length")[1].samples(1, build()))


@pytest.mark.parametrize("name", INFINITE)
def test_infinitebench_knows_right_from_wrong(tmp_path, name):
    jsonl(tmp_path / f"{name}.jsonl", {"id": 0, "context": BOOK, **INFINITE[name]})
    (benchmark,) = make("infinitebench", path=str(tmp_path), sets=[name])
    short = BuildContext(tiny_tokenizer(), 900, 0, TEXT, max_new_tokens=8)
    (sample,) = benchmark.samples(2, short)
    assert sample.context.endswith(BOOK)
    assert "{" not in sample.context + sample.question
    assert not sample.chat
    assert benchmark.score(RIGHT.get(name, sample.references[0]), sample) == 1.0
    assert benchmark.score("no", sample) == benchmark.score("", sample) == 0.0
    assert pickle.loads(pickle.dumps(benchmark)) == benchmark


def test_infinitebench_asks_as_published(tmp_path):
    for name in ("math_find", "code_run", "code_debug"):
        jsonl(tmp_path / f"{name}.jsonl", {"id": 0, "context": BOOK, **INFINITE[name]})
    found, run, debug = make("infinitebench", path=str(tmp_path), sets=["math_find", "code_run", "code_debug"])
    (sample,) = found.samples(1, build())
    assert sample.context.startswith("What is the largest number in the following list?\n\n")
    assert sample.question == "\n\nThe largest number of the list is"
    (sample,) = run.samples(1, build())
    assert sample.context.startswith("There is a function called func_12 in the following Python code.")
    assert sample.question.endswith("exact value of func_12(-3). The value of func_12(-3) is")
    (sample,) = debug.samples(1, build())
    assert "\nC. cmd_gen\nD. four\n\nThe correct option is:" in sample.question
    with pytest.raises(UserError, match="'longbook_sum_eng' is not here: it is scored by rougeLsum"):
        make("infinitebench", sets=["longbook_sum_eng"])


def test_mrcr_is_a_conversation_whose_last_message_is_asked(tmp_path):
    (tmp_path / "2needle").mkdir()
    other = MRCR | {"prompt": json.dumps([MESSAGES[0], {**MESSAGES[1], "content": "word " * 2000}, MESSAGES[4]])}
    for part, row in enumerate((other, MRCR)):
        pq.write_table(pa.Table.from_pylist([row]), tmp_path / "2needle" / f"2needle_{part}.parquet")
    (benchmark,) = make("mrcr", path=str(tmp_path), needles=[2], max_new_tokens=40)
    told = build()
    told.tokenizer.chat_template = told.tokenizer.chat_template.replace("[user]", "[{{ message['role'] }}]")
    (sample,) = benchmark.samples(9, told)  # the longer one is left out
    prompt = PromptFormat.of(told.tokenizer)
    assert prompt.context(sample.context) + prompt.question(sample.question, "") == (
        told.tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)
    )
    assert sample.labels == {"needles": 2, "bucket": "2-4k"}
    scores = {"aYooSGsecond poem": 1.0, "second poem": 0.0, "aYooSGsecond": 2 * 6 / 17}
    assert {answer: benchmark.score(answer, sample) for answer in scores} == pytest.approx(scores)
    with pytest.raises(UserError, match="no row fits into 100 tokens"):
        list(benchmark.samples(1, build(100)))
    bad = MRCR | {"prompt": json.dumps(MESSAGES[1:])}
    with pytest.raises(UserError, match="line 1: 'prompt' must be JSON of messages"):
        list(make("mrcr", path=str(jsonl(tmp_path / "bad.jsonl", bad)), needles=[2])[0].samples(1, build()))


def test_helmet_shows_two_shots_and_looks_for_the_plain_value(tmp_path):
    row = {"context": BOOK, "question": "k3", "answer": "v-3", "demos": [["k1", "v1"], ["k2", "v2"], ["k0", "v0"]]}
    jsonl(tmp_path / "json_kv" / "test_k105_dep6.jsonl", row | {"num_kvs": 105})
    needle = {"context": BOOK, "query": "left-key", "type_needle_v": "uuid", "answer": ["a-1"]}
    jsonl(tmp_path / "ruler" / "niah_multikey_3" / "validation_8192.jsonl", needle)
    keys, needles = make("helmet_recall", path=str(tmp_path), sets=["json_kv", "niah_mk_3"])
    (sample,) = keys.samples(2, build())
    assert sample.question == (
        "\n\nExtract the value corresponding to the specified key in the JSON object below.\n\nKey: k1\n"
        "Corresponding value: v1\n\nKey: k2\nCorresponding value: v2\n\nKey: k3\nCorresponding value:"
    )
    assert [keys.score(answer, sample) for answer in ("It is V3.", "v 3")] == [1.0, 0.0]
    (sample,) = needles.samples(2, build())
    assert sample.context.startswith("A special magic uuid is hidden within the following text.")
    assert sample.question.endswith("\nThe special magic uuid for left-key mentioned in the provided text is")
    with pytest.raises(UserError, match=r"row 1: prompt and answer take \d+ tokens, and grid.length is 200"):
        list(keys.samples(1, build(200)))
    with pytest.raises(UserError, match=r"There is no folder .*nowhere. Give path=FOLDER"):
        list(make("helmet_recall")[0].samples(1, build()))


PROMPTS = {
    "path_traversal": "{city_context}\n\nRoute from {src_city} to {dst_city}? Tags: {{x}}",
    "tom_tracking": "[STORY]\n{story}\n\n{question}",
    "html_to_tsv": "{html_str}\n{task_topic}{filtering_instruction}\n{tsv_header}",
}
PROCEDURES = {
    "path_traversal": {"context_nl": BOOK, "question_repr": ["Lille", "Rome"], "answer_nl": "one.\ntwo.\nthree."},
    "tom_tracking": {"story": BOOK, "question": "Where?", "solution": "So:\n- Step 0: the rack\n- Step 1: a pedestal"},
    "html_to_tsv": {
        **{"html_path": "webpage/1.html", "task_topic": "towns", "task_description": "", "filtering_instruction": ""},
        **{"tsv_header": "town\tin", "gt": "town\tin\nThe Hague\tHolland\nRome\tItaly"},
    },
}
ANSWERS = {  # answer -> score, and the partial one where there is one
    "path_traversal": {
        "<Route>\none.\ntwo.\nthree.\n</Route>": (1, 1),
        "<Route>one.\nTWO.</Route>": (0, 2 / 3),
        "one.\ntwo.\nthree.": (0, 0),
    },
    "tom_tracking": {
        "- step 0 rack\n- step 1: THE pedestal": (1, 1),
        "- 0 rack": (0, 1 / 2),
        "- 0 rack\n- 1 rack": (0, 1 / 2),
        "the rack": (0, 0),
    },
    "html_to_tsv": {
        "```tsv\ntown\tin\nRome\tItaly\nhague\tholland\n```": (1,),
        "```tsv\ntown\tin\nRome\tItaly\nOslo\tNorway\n": (1 / 2,),
        "town\tin\nRome\tItaly\nand so on": (2 / 3,),
        "town\nRome": (0,),
        "": (0,),
    },
}


@pytest.mark.parametrize("name", PROCEDURES)
def test_longproc_reads_its_prompts_and_scores_as_its_evaluators(tmp_path, name):
    folder = tmp_path / name
    (folder / "webpage").mkdir(parents=True)
    (folder / "webpage" / "1.html").write_text(BOOK)
    (folder / "prompts.yaml").write_text(json.dumps({"USER_PROMPT": PROMPTS[name]}))
    (folder / f"{name}_2k.json").write_text(json.dumps([PROCEDURES[name]]))
    (benchmark,) = make("longproc", path=str(tmp_path), sets=[name], size="2k")
    assert benchmark.max_new_tokens == 3072
    if name == "html_to_tsv":
        (folder / f"{name}_8k.json").write_text(json.dumps([PROCEDURES[name] | {"html_path": "webpage/2.html"}]))
        with pytest.raises(UserError, match=r"2.html' cannot be read"):
            list(make("longproc", path=str(tmp_path), sets=[name], size="8k")[0].samples(1, build(20_000)))
    (sample,) = benchmark.samples(2, build(6000))
    assert sample.context.endswith(BOOK)
    assert "{{" not in sample.question
    for answer, expected in ANSWERS[name].items():
        found = (benchmark.score(answer, sample), *benchmark.other_scores(answer, sample).values())
        assert found == pytest.approx(expected), answer
    with pytest.raises(UserError, match="'countdown' is not here: it is prompted and scored by a search"):
        make("longproc", sets=["countdown"])


def test_mmlu_pro_shares_the_examples_of_a_category(tmp_path):
    row = {"question_id": 1, "question": "Why? ", "options": ["so", "not so"], "answer": "B", "answer_index": 1}
    rows = [row | {"category": name} for name in ("law", "law", "math")]
    for split in ("test", "validation"):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{split}-00000-of-00001.parquet")
    (law,) = make("mmlu_pro", path=str(tmp_path), categories=["law"])
    samples = list(law.samples(9, build()))
    assert contexts_of(samples) == [0, 0]
    assert len({sample.own_group for sample in samples}) == 2  # the examples do not make questions alike
    assert samples[0].context == (
        "The following are multiple choice questions (with answers) about law.\n\n"
        + "Why?\nA. so\nB. not so\nAnswer: B\n\n" * 2
    )
    assert (samples[0].question, samples[0].options) == ("Why?\nA. so\nB. not so\nAnswer:", (" A", " B"))
    assert [law.score(option, samples[0]) for option in samples[0].options] == [0.0, 1.0]


def test_a_prompt_that_is_too_long_loses_its_middle(tmp_path):
    jsonl(tmp_path / "data.jsonl", V2 | {"context": "begin " + "word " * 2000 + "end"})
    (benchmark,) = make("longbench_v2", path=str(tmp_path))
    (sample,) = benchmark.samples(1, build(400))
    prompt = PromptFormat.of(build().tokenizer)
    whole = prompt.context(sample.context) + prompt.question(sample.question, "")
    assert 380 < len(encode(build().tokenizer, whole)) + 128 <= 400
    assert "<text>\nbegin word" in whole
    assert "(D) Dora" in whole
    assert build_hash(benchmark, build(400)) != build_hash(benchmark, build(401))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "must hold a list of rows"),
        ("[", "data.json: not valid JSON"),
        ("[1]", "row 1: expected an object"),
        (json.dumps([{**V2, "answer": 3}]), "row 1: 'answer' must be text, got 3"),
    ],
)
def test_bad_rows_of_a_list_are_named(tmp_path, text, said):
    (tmp_path / "data.json").write_text(text)
    (benchmark,) = make("longbench_v2", path=str(tmp_path))
    with pytest.raises(UserError, match=said):
        list(benchmark.samples(1, build()))


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("longbook_choice_eng", {"options": None}, "is not as published"),
        ("code_debug", {"answer": ["nothing"]}, "is not as published .ValueError: 'nothing' is not in list"),
        ("code_run", {"input": "no call"}, "is not as published .IndexError"),
    ],
)
def test_a_row_that_cannot_be_asked_is_shown(tmp_path, name, changes, said):
    jsonl(tmp_path / f"{name}.jsonl", {"id": 7, "context": BOOK, **INFINITE[name], **changes})
    (benchmark,) = make("infinitebench", path=str(tmp_path), sets=[name])
    with pytest.raises(UserError, match=rf"'infinitebench_{name}': a row of .*{said}.*begins ..id.: 7"):
        list(benchmark.samples(1, build()))

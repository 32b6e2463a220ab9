"""SQuAD and HotpotQA files: which questions are taken, which documents stand around them, what is refused."""

from __future__ import annotations

import json

import pytest
from ruler_readers import qa_documents
from tiny_tokenizers import TEXT, tiny_tokenizer

from indexmem.benchmarks.base import BuildContext, build_hash
from indexmem.benchmarks.registry import make_benchmarks
from indexmem.benchmarks.ruler.corpora import read_hotpotqa, read_squad
from indexmem.benchmarks.ruler.invented import one_document, two_documents
from indexmem.config.schema import BenchmarkConfig
from indexmem.errors import UserError


def build_for(length: int = 400) -> BuildContext:
    return BuildContext(tokenizer=tiny_tokenizer("words"), length=length, seed=1, haystack=TEXT)


def paragraph(name: str, questions: int) -> dict:
    """A paragraph with `questions` answerable questions and one that is not."""
    asked = [
        {
            "question": f"Who is {name} {n}?",
            "answers": [{"text": f"{name}-{n}"}, {"text": f"{name}-{n}"}, {"text": "X"}],
        }
        for n in range(questions)
    ]
    asked.append({"question": f"Who is not in {name}?", "is_impossible": True, "answers": []})
    people = " ".join(f"{name}-{n} lives here." for n in range(questions))
    return {"context": f"This is about {name}. {people}", "qas": asked}


SQUAD = {
    "data": [
        {"title": title, "paragraphs": [paragraph(f"{title}{number}", 2) for number in range(4)]}
        for title in ("Amber", "Birch", "Cedar", "Dunes", "Eagle", "Flint", "Grove", "Heron")
    ]
}
HOTPOT = [
    {
        "question": f"Which river passes the town of mayor {name}?",
        "answer": f"River {name}",
        "supporting_facts": [[f"Mayor {name}", 0], [f"Town {name}", 0], [f"Town {name}", 1]],
        "context": [
            [f"Mayor {name}", [f"{name} is mayor of Town {name}."]],
            [f"Hill {name}", ["A hill.", f" It is called {name}."]],
            [f"Town {name}", [f"Town {name} is old.", f" River {name} passes it."]],
        ],
    }
    for name in ("Ada", "Bo", "Cy", "Di", "Ed", "Flo")
]


@pytest.fixture
def files(tmp_path):
    paths = {"squad": tmp_path / "dev-v2.0.json", "hotpotqa": tmp_path / "hotpot.json"}
    paths["squad"].write_text(json.dumps(SQUAD))
    paths["hotpotqa"].write_text(json.dumps(HOTPOT))
    return {name: str(path) for name, path in paths.items()}


def task(name: str, **params):
    (made,) = make_benchmarks([BenchmarkConfig(name=name, params=params)])
    return made


def test_only_answerable_questions_are_asked_each_with_its_different_answers(files):
    corpus = read_squad(files["squad"])
    assert len(corpus.questions) == 8 * 4 * 2
    assert corpus.questions[0].answers == ("Amber0-0", "X")
    assert len(corpus.documents) == 32
    assert {corpus.documents[n].split()[3][:5] for n in corpus.questions[0].near} == {"Amber"}


def test_the_paragraph_comes_first_then_its_article_then_the_rest(files):
    squad = task("qa_1", squad=files["squad"])
    assert squad.protocol == "ruler"
    for sample in squad.samples(10, build_for()):
        answer, article = sample.references[0], sample.references[0][:5]
        documents = qa_documents(sample)
        (place,) = [i for i, document in enumerate(documents) if answer in document]
        assert article in documents[place]
        assert sum(article in document for document in documents) == 4, "the whole article fits, so it is there"
        assert len(documents) > 4
    short = next(iter(squad.samples(1, build_for(length=128))))
    assert 0 < len(qa_documents(short)) < 4
    assert all(short.references[0][:5] in document for document in qa_documents(short))
    assert any(short.references[0] in document for document in qa_documents(short))


def test_both_supporting_documents_are_there_however_short_the_text(files):
    hotpot = task("qa_2", hotpotqa=files["hotpotqa"])
    for length in (128, 400):
        for sample in hotpot.samples(6, build_for(length)):
            name = sample.references[0].removeprefix("River ")
            documents = qa_documents(sample)
            assert f"Mayor {name}\n{name} is mayor of Town {name}." in documents
            assert f"Town {name}\nTown {name} is old. River {name} passes it." in documents


def test_all_documents_fit_into_a_long_text_and_none_comes_twice(files):
    sample = next(iter(task("qa_2", hotpotqa=files["hotpotqa"]).samples(1, build_for(4000))))
    assert len(qa_documents(sample)) == 18


def test_the_samples_depend_on_what_is_in_the_file(files, tmp_path):
    other = tmp_path / "other.json"
    other.write_text(json.dumps(HOTPOT[:4]))
    hashes = {build_hash(task("qa_2", hotpotqa=str(path)), build_for()) for path in (files["hotpotqa"], other)}
    assert len(hashes | {build_hash(task("qa_2"), build_for())}) == 3


@pytest.mark.parametrize("read", [read_squad, read_hotpotqa])
@pytest.mark.parametrize("content", ["not json", "{}", '{"data": [{"paragraphs": [{}]}]}', '[{"question": "?"}]', "3"])
def test_another_layout_is_named(read, content, tmp_path):
    path = tmp_path / "file.json"
    path.write_text(content)
    with pytest.raises(UserError, match=r"file\.json (is not laid out as|has no answerable).* (SQuAD|HotpotQA)"):
        read(str(path))


def test_files_without_questions_and_missing_ones_are_named(tmp_path):
    empty = tmp_path / "empty.json"
    empty.write_text('{"data": []}')
    with pytest.raises(UserError, match="no answerable question"):
        read_squad(str(empty))
    with pytest.raises(UserError, match=r"There is no file .*nowhere\.json"):
        build_hash(task("qa_1", squad=str(tmp_path / "nowhere.json")), build_for())


def test_invented_worlds_are_a_function_of_the_seed_and_of_their_size():
    assert one_document(40, 3) == one_document(40, 3) != one_document(40, 4)
    corpus = two_documents(300, 3)
    assert len(set(corpus.documents)) == 600
    answers = [question.answers[0] for question in corpus.questions]
    assert len(set(answers)) == len({len(answer) for answer in answers}) * 300

"""What a job carries: one resolved spec, the files that it names, and never too much."""

from pathlib import Path

import pytest
import yaml

from indexmem.cluster.job import job_of
from indexmem.cluster.upload import check_size, plan_nightly_upload, plan_upload
from indexmem.commands.sending import Sending, suites_of
from indexmem.commands.submit import Submission, submit_spec
from indexmem.config.load import load
from indexmem.config.nightly import is_nightly, load_nightly
from indexmem.errors import UserError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_text("a text")
    (tmp_path / "book.txt").write_text("a book")
    (tmp_path / "base.yaml").write_text("name: far\ngrid: {methods: [full, knorm], haystack: book.txt}\n")
    (tmp_path / "child.yaml").write_text("extends: base.yaml\ndistill: {texts: [corpus, king-james]}\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_job_reads_the_spec_that_was_checked_and_files_of_equal_content(folder, monkeypatch):
    experiment = load("child.yaml", ["grid.samples=3", "grid.budgets=[8 MiB]"])
    upload = plan_upload(experiment, send_files=True)
    there = folder / "there"
    there.mkdir()
    upload.write(there)
    monkeypatch.chdir(there)
    arrived = load("spec.yaml")
    (corpus, name), haystack = map(str, arrived.distill.texts), arrived.grid.haystack
    assert name == "king-james"
    assert corpus.startswith(f"{there}/files/")
    assert Path(corpus, "a.txt").read_text() == "a text"
    assert Path(haystack).read_text() == "a book"
    back = {"distill": {"texts": [f"{folder}/corpus", name]}, "grid": {"haystack": f"{folder}/book.txt"}}
    merged = arrived.model_dump(mode="json")
    for section, settings in back.items():
        merged[section] |= settings
    assert merged == experiment.model_dump(mode="json")


def test_texts_with_settings_travel_too(folder):
    upload = plan_upload(load("child.yaml", ["distill.texts=[{name: book.txt, column: body}]"]), send_files=True)
    (text,) = upload.spec["distill"]["texts"]
    assert text["column"] == "body" and upload.files[text["name"]] == folder / "book.txt"


def test_files_can_stay_where_the_nodes_have_them(folder):
    upload = plan_upload(load("child.yaml"), send_files=False)
    assert upload.files == {}
    assert upload.spec["grid"]["haystack"] == f"{folder}/book.txt"


def test_equal_work_has_one_name_from_any_folder_and_changed_work_another(folder, tmp_path_factory, monkeypatch):
    def key(verb="eval", *overrides):
        return job_of(verb, plan_upload(load("child.yaml", overrides), send_files=True)).key

    first = key()
    assert first.startswith("eval-far-")
    other = tmp_path_factory.mktemp("other")
    for name in ("base.yaml", "child.yaml", "book.txt"):
        (other / name).write_text((folder / name).read_text())
    (other / "corpus").mkdir()
    (other / "corpus" / "a.txt").write_text("a text")
    monkeypatch.chdir(other)
    assert key() == first
    assert key("distill").removeprefix("distill") != first.removeprefix("eval")
    assert key("eval", "grid.samples=7") != first
    (other / "corpus" / "a.txt").write_text("another text")
    assert key() != first


def test_a_run_root_inside_the_jobs_folder_is_refused(folder):
    with pytest.raises(UserError, match=r"run\.root=results would lie in the job's own folder"):
        plan_upload(load("child.yaml", ["run.root=results"]), send_files=True)
    assert plan_upload(load("child.yaml", ["run.root=/shared/runs"]), send_files=True).spec["run"]["root"]


def test_too_much_is_refused_with_the_largest_files_first(folder):
    (folder / "corpus" / "large.txt").write_text("x" * 3 * 2**20)
    (folder / "corpus" / "__pycache__").mkdir()
    (folder / "corpus" / "__pycache__" / "not_sent").write_text("x" * 9 * 2**20)
    corpus = folder / "corpus"
    assert check_size([corpus, folder / "book.txt"]) == 3 * 2**20 + len("a text") + len("a book")
    with pytest.raises(UserError) as caught:
        check_size([corpus, folder / "book.txt"], most=2**20)
    first, second = str(caught.value).splitlines()[:2]
    assert "would carry 3 MiB, and Ray takes 1 MiB" in first
    assert second.split() == ["3.0", "MiB", f"{corpus}/large.txt"]
    assert "__pycache__" not in str(caught.value)


def test_the_written_spec_is_plain_yaml(folder):
    upload = plan_upload(load("child.yaml"), send_files=True)
    upload.write(folder)
    assert yaml.safe_load((folder / "spec.yaml").read_text()) == upload.spec


def test_files_of_benchmarks_travel(folder, monkeypatch):
    """They stand beside the spec, wherever one calls from."""
    (folder / "mine.jsonl").write_text('{"context": "a", "question": "b", "answers": ["c"]}\n')
    (folder / "own.yaml").write_text("grid: {benchmarks: [niah_single_1, {name: jsonl, params: {path: mine.jsonl}}]}\n")
    monkeypatch.chdir("/")
    upload = plan_upload(load(folder / "own.yaml"), send_files=True)
    path = upload.spec["grid"]["benchmarks"][1]["params"]["path"]
    assert upload.files == {path: folder / "mine.jsonl"}
    (folder / "job").mkdir()
    upload.write(folder / "job")
    assert (folder / "job" / path).read_text() == (folder / "mine.jsonl").read_text()


def plan_job(experiment, *, send_files=True):
    sending = Sending(address=None, files=send_files, code=True, installer=None, variables={})
    return submit_spec("eval", experiment, Submission(sending, "join", follow=False, fetch_to=None, dry_run=True))


def test_scorers_that_rows_name_travel_or_are_refused(folder, capsys, monkeypatch):
    (folder / "acme_scores").mkdir()
    for place in ("acme_scores/__init__.py", "mine.py"):
        (folder / place).write_text("def half(answer, right):\n    return 0.5\n")
    monkeypatch.syspath_prepend(str(folder))
    (folder / "own.yaml").write_text("grid: {benchmarks: [{name: jsonl, params: {path: mine.jsonl}}]}\n")
    row = '{"context": "a", "question": "b", "answers": ["c"], "metric": "%s"}\n'
    (folder / "mine.jsonl").write_text(row % "exact" + row % "acme_scores:half")
    assert plan_job(load("own.yaml")) == 0
    assert f"{folder}/acme_scores as an importable package" in capsys.readouterr().err
    (folder / "mine.jsonl").write_text(row % f"{folder}/mine.py:half")
    with pytest.raises(UserError, match=r"mine\.py:half, and the job does not bring it\. Write it for all rows"):
        plan_job(load("own.yaml"))
    assert plan_job(load("own.yaml"), send_files=False) == 0


def test_a_night_travels_with_the_specs_of_its_suites(folder, tmp_path_factory, monkeypatch):
    (folder / "nightly.yaml").write_text(
        "suites:\n"
        "  - {name: far, spec: child.yaml, verbs: [eval], overrides: [grid.samples=3]}\n"
        "  - {name: near, spec: base.yaml}\n"
        "run: {root: /shared/runs}\n"
    )
    nightly = load_nightly("nightly.yaml")
    upload = plan_nightly_upload(nightly, suites_of(nightly), send_files=True)
    there = tmp_path_factory.mktemp("there")
    upload.write(there)
    monkeypatch.chdir(there)
    arrived = load_nightly("spec.yaml")
    assert [suite.verbs for suite in arrived.suites] == [("eval",), ("distill", "eval")]
    assert arrived.run.root == "/shared/runs" and is_nightly("spec.yaml") and not is_nightly("suite-near.yaml")
    far, near = suites_of(arrived).values()
    assert (far.grid.samples, near.grid.samples) == (3, load(folder / "base.yaml").grid.samples)
    assert Path(far.grid.haystack).read_text() == "a book"
    assert Path(far.grid.haystack).is_relative_to(there)
    assert job_of("nightly", upload).entrypoint == "python -m indexmem nightly run spec.yaml"

    monkeypatch.chdir(folder)

    def key(*overrides):
        changed = load_nightly(folder / "nightly.yaml", overrides)
        return job_of("nightly", plan_nightly_upload(changed, suites_of(changed), send_files=True)).key

    assert key() == job_of("nightly", upload).key
    assert key("compare.nights=3") != key()
    (folder / "base.yaml").write_text("name: far\ngrid: {methods: [full, snapkv]}\n")
    assert key() != job_of("nightly", upload).key, "another spec of a suite is another job"
    with pytest.raises(UserError, match=r"run\.root=here would lie"):
        key("run.root=here")

"""What is ranked with what: one protocol a section, statistics of `results`, and nothing invented where scores lack."""

from __future__ import annotations

import pyarrow as pa
import pytest
from board_rows import ROW, sampled, write_kvpress, write_rows, write_store

from indexmem.board.files import as_table
from indexmem.board.format import as_board_row
from indexmem.board.sections import sections
from indexmem.board.sources import read_source
from indexmem.cli import main
from indexmem.config.schema import MEAN
from indexmem.errors import UserError
from indexmem.results.intervals import mean_ci
from indexmem.results.store import RowStore
from indexmem.results.summary import summarise

GOOD, BAD = [1.0] * 40, [1.0] * 8 + [0.0] * 32


def laid_out(*rows):
    return sections(as_table([as_board_row({"who": "w"} | row) for group in rows for row in group]))


def by_method(section):
    return {line.method: line for line in section.lines}


def test_under_one_protocol_the_better_wins_by_a_paired_test():
    (section,) = laid_out(sampled(GOOD), sampled(BAD, method="other"))
    found = by_method(section)
    assert (found["theirs"].standing, found["other"].standing) == ("winner", "behind")
    interval = mean_ci(BAD)
    assert (found["other"].score, found["other"].interval.low) == (0.2, interval.low)


@pytest.mark.parametrize(
    "change",
    [
        {"engine": "vllm 0.13"},
        {"length": 4096},
        {"sinks": 0},
        {"question": "before"},
        {"decoding": "temperature=0.6"},
        {"dtype": "float16"},
        {"seed": 1},
        {"settings": "equal_bytes"},
    ],
)
def test_another_protocol_is_another_section_and_no_rival(change):
    found = laid_out(sampled(GOOD), sampled(BAD, method="other", **change))
    assert [line.standing for section in found for line in section.lines] == ["alone", "alone"]
    assert len(found) == 2


@pytest.mark.parametrize("change", [{"build": "v2"}, {"prompts": "official"}])
def test_other_samples_or_scores_are_another_benchmark(change):
    (section,) = laid_out(sampled(GOOD), sampled(BAD, method="other", **change))
    told = {line.benchmark for line in section.lines}
    assert len(told) == 2 and all(name.startswith("lockers [") for name in told)
    assert {line.standing for line in section.lines} == {"alone"}


def test_other_weights_are_another_model():
    (section,) = laid_out(sampled(GOOD), sampled(BAD, method="other", model_revision="abc"))
    assert {line.model for line in section.lines} == {"some/model [not recorded]", "some/model [abc]"}
    assert {line.standing for line in section.lines} == {"alone"}


@pytest.mark.parametrize("name", ["sinks", "question", "decoding", "dtype"])
def test_what_is_not_recorded_is_not_ranked_and_stays_apart(name):
    first, second = sampled(GOOD, **{name: None}), sampled(BAD, method="other", **{name: None})
    found = laid_out([row | {"who": "a"} for row in first], [row | {"who": "b"} for row in second])
    assert sorted((section.source, section.unknown) for section in found) == [("a", (name,)), ("b", (name,))]
    assert {line.standing for section in found for line in section.lines} == {""}
    assert all(line.interval is not None for section in found for line in section.lines)


def test_a_mean_without_samples_has_no_interval_and_no_rank():
    mean = ROW | {"sample": None, "samples": 500, "score": 0.99, "method": "told"}
    (section,) = laid_out(sampled(GOOD), sampled(BAD, method="other"), [mean])
    line = by_method(section)["told"]
    assert (line.interval, line.standing, line.samples) == (None, "", 500)
    assert line.note == "no scores of single samples, so no interval"
    assert by_method(section)["theirs"].standing == "winner"


def test_who_lacks_samples_is_not_ranked():
    (section,) = laid_out(sampled(BAD), sampled([1.0] * 8, method="fails"), sampled(BAD, method="other"))
    line = by_method(section)["fails"]
    assert (line.score, line.standing, line.note) == (1.0, "", "lacks samples that others answered")


def test_the_same_name_by_two_people_is_two_methods_unless_its_code_is_known():
    two = [[row | {"who": who} for row in sampled(scores)] for who, scores in (("a", GOOD), ("b", BAD))]
    (section,) = laid_out(*two)
    assert set(by_method(section)) == {"theirs [a]", "theirs [b]"}
    (section,) = laid_out(*([row | {"code": "0123"} for row in rows] for rows in two))
    assert set(by_method(section)) == {"theirs"}


def test_the_newest_of_two_rows_of_a_sample_counts():
    old, new = (
        ROW | {"code": "1", "score": score, "date": date} for score, date in ((0, "2026-01-01"), (1, "2026-02-01"))
    )
    (section,) = laid_out([new], [old])
    assert by_method(section)["theirs"].score == 1.0


def test_stores_of_one_protocol_are_joined_and_scored_as_one_store_would(tmp_path):
    sources = [
        read_source(f"{who}={write_store(tmp_path / who, {}, methods)}")
        for who, methods in (("alice", ["indexer", "snapkv"]), ("bob", ["knorm"]))
    ]
    (section,) = sections(pa.concat_tables([source.rows for source in sources]))
    whole = summarise(_rows(write_store(tmp_path / "one", {}, ["indexer", "snapkv", "knorm"])))
    told = {(line.method, str(line.budget), line.benchmark): line for line in section.lines}
    assert {line.origin["who"] for line in section.lines if line.method == "knorm"} == {("bob",)}
    assert {key[2] for key in told} >= {MEAN}
    assert set(told) == {(method, str(budget), benchmark) for method, budget, benchmark in whole.cells}
    costs = told["indexer", "75%", "niah_single_1"].costs
    assert costs["held_bytes"] > costs["full_bytes"] / 4
    assert (costs["score_ms"], costs["decode_ms"]) == (pytest.approx(180.0), None), "decoded in batches"


def _rows(root):
    return RowStore(root / "results").read(["p"])


def test_stores_that_differ_in_a_setting_are_apart_and_old_rows_are_not_ranked(tmp_path):
    stores = [write_store(tmp_path / f"s{n}", told, ["knorm"]) for n, told in enumerate(({}, {"sinks": 0}, None))]
    found = sections(pa.concat_tables([read_source(str(store)).rows for store in stores]))
    assert sorted(str(section.protocol["sinks"]) for section in found) == ["0", "4", "None"]
    assert [section.source for section in found] == ["", "", "s2"]
    assert {line.standing for line in found[2].lines} == {""}


def test_question_aware_rows_are_a_section_of_their_own(tmp_path):
    stores = [write_store(tmp_path / f"s{n}", {}, ["knorm"], question_aware=bool(n)) for n in range(2)]
    found = sections(pa.concat_tables([read_source(str(store)).rows for store in stores]))
    assert sorted(section.protocol["question"] for section in found) == ["after", "before"]
    assert not any(section.unknown for section in found)


def test_another_engine_is_another_protocol_and_other_code_of_a_method_another_method(tmp_path):
    codes = ("engine 2", "engine 2, 0a1b", "engine 3", None)
    stores = [write_store(tmp_path / f"s{n}", {}, ["knorm"], code=code) for n, code in enumerate(codes)]
    found = sections(pa.concat_tables([read_source(str(store)).rows for store in stores]))
    told = {section.protocol["engine"]: {line.method for line in section.lines} - {"full"} for section in found}
    assert told.keys() == {"indexmem, engine 2", "indexmem, engine 3", "indexmem, engine not recorded"}
    assert {"knorm [engine 2]", "knorm [engine 2, 0a1b]"} <= told["indexmem, engine 2"]
    assert found[-1].unknown and not found[0].unknown


def test_uris_are_read_through_pyarrow_and_fsspec(tmp_path):
    import fsspec

    write_store(tmp_path / "root", {}, ["knorm"])
    local = read_source(str(tmp_path / "root")).rows
    assert read_source(f"root=file://{tmp_path}/root").rows == local
    memory = fsspec.filesystem("memory")
    memory.pipe("/board/rows.jsonl", write_rows(tmp_path / "rows.jsonl", sampled(GOOD)).read_bytes())
    assert read_source("c=memory://board/rows.jsonl").rows.num_rows == 40
    assert read_source("c=memory://board").rows["who"].unique().to_pylist() == ["c"]
    with pytest.raises(UserError, match="nowhere://x"):
        read_source("nowhere://x")


def test_results_of_kvpress(tmp_path):
    metrics = {"vt": {"string_match": 71.2}, "niah_single_1": {"string_match": 99}}
    predictions = "task,predicted_answer\n" + 'vt,"a, b"\n' * 5 + "niah_single_1,c\n" * 7
    write_kvpress(tmp_path / "all" / "a", metrics, predictions)
    write_kvpress(tmp_path / "all" / "b", metrics, predictions, query_aware=True, press_name="no_press")
    found = sections(read_source(f"nv={tmp_path / 'all'}").rows)
    assert {section.protocol["question"] for section in found} == {"after", "before"}
    after = next(section for section in found if section.protocol["question"] == "after")
    told = [(line.method, str(line.budget), line.benchmark, line.score, line.samples) for line in after.lines]
    assert told == [
        ("snapkv", "50%", "ruler/niah_single_1", 0.99, 7),
        ("snapkv", "50%", "ruler/vt", pytest.approx(0.712), 5),
    ]
    assert {line.interval for line in after.lines} == {None}
    full = next(section for section in found if section is not after)
    assert {(line.method, str(line.budget)) for line in full.lines} == {("full", "0%")}
    assert after.protocol["engine"] == "kvpress, version not recorded, rows of nv"


def test_kvpress_metrics_of_other_shapes(tmp_path):
    write_kvpress(tmp_path / "share", {"accuracy": 0.25, "answered": 0.5})
    told = {line.benchmark: line.score for line in sections(read_source(str(tmp_path / "share")).rows)[0].lines}
    assert told == {"ruler/accuracy": 0.25, "ruler/answered": 0.5}
    write_kvpress(tmp_path / "number", 43.5)
    (line,) = sections(read_source(str(tmp_path / "number")).rows)[0].lines
    assert (line.benchmark, line.score) == ("ruler/score", 0.435)
    write_kvpress(tmp_path / "bad", {"x": {}})
    with pytest.raises(UserError, match=r"metrics.json holds no scores"):
        read_source(str(tmp_path / "bad"))
    (tmp_path / "bad" / "config.yaml").write_text("model: m\n")
    with pytest.raises(UserError, match=r"config.yaml: not as kvpress' evaluation writes it"):
        read_source(str(tmp_path / "bad"))


def test_a_place_without_results_says_what_was_expected(tmp_path):
    with pytest.raises(UserError, match=r"no results\. Expected a run root"):
        read_source(str(tmp_path))
    with pytest.raises(UserError, match="There is nothing at"):
        read_source(str(tmp_path / "gone"))


def test_cells_of_one_store_that_look_alike_are_kept_apart_where_settings_are_not_recorded(tmp_path):
    write_store(tmp_path / "s", None, ["knorm"])
    write_store(tmp_path / "s", None, ["knorm"], cell="other-")
    (section,) = sections(read_source(str(tmp_path / "s")).rows)
    names = {line.method for line in section.lines if line.benchmark == "niah_single_1" and str(line.budget) == "50%"}
    assert names == {"knorm [cell knorm-50%-niah_single_1]", "knorm [cell other-knorm-50%-niah_single_1]"}


def test_two_stores_do_not_share_a_name_by_chance(tmp_path, capsys):
    stores = [str(write_store(tmp_path / part / "s" / "runs", {}, ["knorm"])) for part in "ab"]
    assert main(["board", *stores, "--out", str(tmp_path / "page")]) == 2
    assert "2 stores would be called 's'. Name them: WHO=PLACE" in capsys.readouterr().err
    assert main(["board", f"a={stores[0]}", stores[1], "--out", str(tmp_path / "page")]) == 0
    assert (tmp_path / "page" / "index.html").is_file()

"""The row format: what a good row is, what is said of a bad one, and that its page describes all of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from board_rows import ROW, write_rows

from indexmem.board.files import read_board_file
from indexmem.board.format import BOARD_SCHEMA, FIELDS, PROTOCOL, problems
from indexmem.cli import main
from indexmem.errors import UserError

PAGE = (Path(__file__).parents[2] / "docs" / "board.md").read_text(encoding="utf-8")


def test_json_lines_and_parquet_say_the_same(tmp_path):
    lines = [ROW, "", ROW | {"sample": "1", "score": 0, "versions": {"vllm": "0.12"}, "budget": "0.75"}]
    rows = read_board_file(write_rows(tmp_path / "rows.jsonl", lines))
    pq.write_table(rows, tmp_path / "rows.parquet")
    assert read_board_file(tmp_path / "rows.parquet") == rows
    assert rows.schema == BOARD_SCHEMA
    assert rows["budget"].to_pylist() == ["75%", "75%"]
    assert json.loads(rows["versions"][1].as_py()) == {"vllm": "0.12"}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"board_version": 2}, "'board_version' must be 1; got 2"),
        ({"score": None}, "'score' is missing"),
        ({"score": 93.1}, "'score' must be a number from 0 to 1; got 93.1"),
        ({"score": True}, "'score' must be a number, got True"),
        ({"score": "1"}, "'score' must be a number, got '1'"),
        ({"budget": "lots"}, "'budget' 'lots': no budget; expected 0.75"),
        ({"budget": 0.75}, "'budget' must be text, got 0.75"),
        ({"method": "full"}, "'full' is the cache that evicts nothing: its budget is 0%, got '75%'"),
        ({"benchmark": "mean"}, "'benchmark' must be a name, and not 'mean', which stands for all of them"),
        ({"model": " "}, "'model' must be a text that is not empty"),
        ({"question": "never"}, "'question' must be after or before; got 'never'"),
        ({"length": 0}, "'length' must be a number above 0; got 0"),
        ({"held_bytes": -1}, "'held_bytes' must be a number that is not negative; got -1"),
        ({"held_bytes": 1e300}, "'held_bytes' must be a number that is finite and not above 2.53"),
        ({"versions": "torch 2"}, "'versions' must be an object of texts"),
        ({"versions": {"torch": 2}}, "'versions' must be an object of texts"),
        ({"date": "yesterday"}, "'date' must be a date such as 2026-11-29"),
        ({"samples": 9}, "'samples' belongs to the mean of a cell"),
        ({"colour": "red"}, "unknown field 'colour'; fields: board_version, model"),
        ({"who": "x" * 2001}, "'who' has 2001 characters; 2000 at most"),
    ],
)
def test_a_bad_row_is_named_with_what_was_expected(tmp_path, change, complaint):
    path = write_rows(tmp_path / "rows.jsonl", [ROW, "", ROW | change])
    with pytest.raises(UserError, match=f"rows.jsonl, line 3: {complaint}"):
        read_board_file(path)


@pytest.mark.parametrize("line", ["[]", "{", '{"score": NaN}'])
def test_what_is_no_row_is_refused(tmp_path, line):
    with pytest.raises(UserError, match=r"rows\.jsonl, line 1: "):
        read_board_file(write_rows(tmp_path / "rows.jsonl", [line]))


def test_the_check_names_all_problems_and_ends_with_2(tmp_path, capsys):
    good = write_rows(tmp_path / "good.jsonl", [ROW])
    bad = write_rows(tmp_path / "bad.jsonl", [ROW | {"score": 2}, ROW | {"sinks": -1, "model": ""}])
    assert main(["board", "--check", str(good)]) == 0
    assert "good.jsonl, called good.jsonl, read as board rows; rows: 1, models: 1" in capsys.readouterr().out
    assert main(["board", "--check", str(bad), str(good)]) == 2
    told = capsys.readouterr()
    assert "good.jsonl" in told.out and told.err.count("bad.jsonl, line") == 3


def test_the_page_describes_every_field_with_an_example():
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)
    assert [name for name, *_ in rows] == list(FIELDS)
    example = {name: json.loads(said.strip("`")) for name, _, _, said in rows}
    assert list(problems({name: value for name, value in example.items() if name != "samples"})) == []
    for name, kind, _, _ in rows:
        assert ("required" in kind) == FIELDS[name].required, name
        assert {str: "text", int: "whole", float: "number"}[FIELDS[name].kind] in kind or name == "versions", name


def test_the_pages_example_and_its_protocol_are_right(tmp_path):
    lines = re.search(r"```json\n(.*?)\n```", PAGE, re.DOTALL)[1]
    rows = read_board_file(write_rows(tmp_path / "rows.jsonl", lines.split("\n")))
    assert rows.num_rows == 2
    said = re.search(r"A \*\*protocol\*\* is (.*?)\.", PAGE, re.DOTALL)[1]
    assert re.findall(r"`(\w+)`", said) == list(PROTOCOL)


def test_the_schema_is_plain():
    assert {field.type for field in BOARD_SCHEMA} == {pa.string(), pa.int64(), pa.float64()}

"""The fields of a line of your own data, and what is said of a wrong one."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from indexmem.benchmarks.own.choice import check_options, letters_of
from indexmem.benchmarks.own.metrics import COMBINE, LIKELIHOOD, whole
from indexmem.benchmarks.rows import BenchmarkRow, check_fields, check_type, rows_of_file
from indexmem.errors import UserError
from indexmem.files import expanded

TURN_FIELDS: Mapping[str, type] = MappingProxyType({"question": str, "answers": list})
FIELDS: Mapping[str, type] = MappingProxyType({"context": str, "question": str, "answers": list})
OPTIONAL: Mapping[str, type] = MappingProxyType(
    {
        "answer_prefix": str,
        "metric": str,
        "match": str,
        "options": list,
        "max_new_tokens": int,
        "labels": dict,
        "group": str,
        "turns": list,
    }
)


def read_own_rows(path: str) -> list[BenchmarkRow]:
    """All rows of a file in order. Raises UserError that names the file, the line and what was expected."""
    file = expanded(path)
    if not file.is_file():
        raise UserError(
            f"Benchmark 'jsonl': there is no file {file}. Give params: {{path: FILE.jsonl}}; a relative path is "
            "looked for beside the spec file, then in the working folder."
        )
    lines = rows_of_file(file, {"context": str}, check_own_line)
    return [row for line in lines for row in asked_of(line)]


def asked_of(line: BenchmarkRow) -> list[BenchmarkRow]:
    """A row for each of a line's `questions`, which say what the line does not; the line itself where it has none."""
    if line.get("questions") is None:
        return [line]
    shared = {field: value for field, value in line.items() if field != "questions"}
    return [shared | question for question in line["questions"]]


def check_own_line(line: BenchmarkRow, where: str) -> None:
    """Raises UserError for a line whose questions cannot be asked."""
    if line.get("questions") is None:
        return check_own_row(line, where)
    check_type(line["questions"], list, f"{where}: 'questions'")
    if not line["questions"]:
        raise UserError(f"{where}: 'questions' must list one at least, or be left out.")
    for number, question in enumerate(line["questions"], start=1):
        check_type(question, dict, f"{where}: question {number}")
    for number, row in enumerate(asked_of(line), start=1):
        check_own_row(row, f"{where}, question {number}")


def check_own_row(row: BenchmarkRow, where: str) -> None:
    """Raises UserError for a question that cannot be asked or scored."""
    check_fields(row, FIELDS, where)
    if not row["context"].strip():
        raise UserError(f"{where}: 'context' is empty, and it is what gets compressed.")
    for field, kind in OPTIONAL.items():
        if row.get(field) is not None:
            check_type(row[field], kind, f"{where}: '{field}'")
    for number, turn in enumerate(row.get("turns") or (), start=2):
        check_turn(turn, row, f"{where}, turn {number}")
    for field in ("answers", "options"):
        by_place = field == "answers" and row.get("options") is not None
        for text in row.get(field) or ():
            check_type(text, (str, int) if by_place else str, f"{where}: each of '{field}'")
    if not row["answers"]:
        raise UserError(f"{where}: 'answers' must list one text at least.")
    if row.get("max_new_tokens") is not None and row["max_new_tokens"] < 1:
        raise UserError(f"{where}: 'max_new_tokens' must be 1 or more, got {row['max_new_tokens']}.")
    if unknown := sorted(row.keys() - FIELDS.keys() - OPTIONAL.keys()):
        raise UserError(f"{where}: unknown field '{unknown[0]}'. Fields: {', '.join([*FIELDS, *OPTIONAL])}.")
    if row.get("options") is None:
        _check_metric(row, where)
    else:
        _check_choice(row, where)


def check_turn(turn: Any, row: BenchmarkRow, where: str) -> None:
    """Raises UserError for a further question that cannot be asked, or has a field that only the first one has."""
    check_type(turn, dict, where)
    check_fields(turn, TURN_FIELDS, where)
    if unknown := sorted(turn.keys() - {*TURN_FIELDS, "answer_prefix", "max_new_tokens"}):
        raise UserError(f"{where}: '{unknown[0]}' is said once, beside the first question.")
    if row.get("options") is not None:
        raise UserError(f"{where}: a row with 'options' has no further turns. Leave out one of the two.")
    check_own_row({field: value for field, value in row.items() if field != "turns"} | turn, where)


def _check_metric(row: BenchmarkRow, where: str) -> None:
    metric, match = row.get("metric"), row.get("match")
    try:
        by_all = None if metric is None else whole(metric)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    if metric == LIKELIHOOD:
        raise UserError(f"{where}: metric {LIKELIHOOD} compares 'options', and there are none.")
    if match is not None and match not in COMBINE:
        raise UserError(f"{where}: 'match' must be any or all, got '{match}'.")
    if match is not None and by_all is not None:
        raise UserError(f"{where}: '{metric}' says by itself how answers count. Write metric: contains with 'match'.")


def _check_choice(row: BenchmarkRow, where: str) -> None:
    check_options(row["options"], where)
    letters_of(row["answers"], row["options"], where)
    for field in ("metric", "match"):
        if row.get(field) is not None and (field, row[field]) != ("metric", LIKELIHOOD):
            raise UserError(
                f"{where}: '{field}' has no effect on a row with 'options'. Leave it out, or set metric: {LIKELIHOOD}."
            )

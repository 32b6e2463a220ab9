"""The record of a run: its line, and texts that cannot disturb a terminal or a page."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexmem.progress.status import MAX_TEXT, FailureNote, RunStatus, duration, left_at, one_line, size


def test_the_line_says_what_is_known():
    assert RunStatus("rows", 500).line() == "0/500 rows"
    grid = RunStatus("rows", 500, 100, 3, 10.0, (40.0, 60.0), 4, note="waiting")
    assert grid.line() == "100/500 rows  3 failed  10 rows/s  40 to 60 s left  4 actors  waiting"
    training = RunStatus("steps", 80, 10, rate=1.5, tokens_per_second=1200.0, measured={"loss indexer": 0.25})
    assert training.line() == "10/80 steps  loss indexer 0.2500  1.5 steps/s  1200 tokens/s"
    assert RunStatus("rows", 9, 9, rate=2.0, left_seconds=(0.0, 0.0), actors=1).line() == "9/9 rows  2 rows/s  1 actor"


@pytest.mark.parametrize(
    ("left", "text"),
    [
        ((30.1, 30.4), "about 30 s left"),
        ((90, 300), "90 s to 5 min left"),
        ((200, 700), "3 to 12 min left"),
        (None, ""),
    ],
)
def test_the_time_left_is_a_range_unless_its_ends_read_the_same(left, text):
    assert RunStatus("rows", 9, left_seconds=left).time_left == text


@given(st.floats(0.1, 1e6), st.lists(st.floats(1e-3, 1e3), max_size=5))
def test_the_time_left_lies_between_that_of_the_fastest_and_of_the_slowest_rate(work, rates):
    found = left_at(work, rates)
    assert (found is None) == (len(rates) < 2)
    if found is not None:
        assert found[0] <= work / (sum(rates) / len(rates)) * 1.000001
        assert found[1] >= work / (sum(rates) / len(rates)) * 0.999999
    assert left_at(work, [1.0, 0.0]) is None


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.4, "1 s"), (119, "119 s"), (120, "2 min"), (3600, "60 min"), (9000, "2.5 h")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (512, "512 B"), (1536, "1.5 KiB"), (1000 * 2**20, "1000 MiB"), (2**50, "1048576 GiB")],
)
def test_sizes(count, text):
    assert size(count) == text


@given(st.text())
def test_a_line_is_one_line_without_controls_whatever_it_was(text):
    line = one_line(text)
    assert line.isprintable()
    assert len(line) <= MAX_TEXT
    assert one_line(line) == line


def test_text_that_acts_on_terminals_is_disarmed_and_other_scripts_stay():
    failure = FailureNote.of("a\nb", "\x1b[2J\u202egnp.exe שלום \u2066x" + "y" * 10_000)
    assert failure.where == "a b"
    assert failure.reason.startswith("[2J gnp.exe שלום xy")
    assert failure.reason.endswith("y…")

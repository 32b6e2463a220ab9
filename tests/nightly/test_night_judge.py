"""From stored rows to a verdict, its pages and its exit code."""

import datetime as dt

import pytest
from night_rows import METHODS, date, fill, judged, nightly_spec, right
from report_rows import HOSTILE

from indexmem.nightly.night import NightRecord, Nights, StepRecord
from indexmem.nightly.pages import html, markdown
from indexmem.nightly.verdict import NightVerdict


@pytest.fixture
def spec(tmp_path):
    """Two nights are judged and fine."""
    spec = nightly_spec(tmp_path)
    for number in (0, 1):
        night = Nights.of(spec).night(date(number))
        fill(night)
        judged(spec, night)
    return spec


@pytest.fixture
def tonight(spec):
    return Nights.of(spec).night(date(2))


def damaged(method: str, sample: int) -> float:
    return right(method, sample) * (method != "knorm" or sample % 2)


def test_the_first_night_has_nothing_to_compare_with(tmp_path):
    spec = nightly_spec(tmp_path)
    night = Nights.of(spec).night(date(0))
    fill(night)
    verdict = judged(spec, night)
    assert (verdict.status, verdict.exit_code, verdict.compared) == ("fine", 0, 0)
    assert "no earlier night" in verdict.headline
    assert "no earlier night" in markdown(verdict)


def test_the_same_rows_are_fine(spec, tonight):
    fill(tonight)
    verdict = judged(spec, tonight)
    assert (verdict.status, verdict.exit_code, verdict.compared) == ("fine", 0, len(METHODS))
    assert verdict.reference == (date(1), date(0))
    assert [(s.method, s.now, s.before) for s in verdict.suites[0].scores] == [(m, 22 / 30, 22 / 30) for m in METHODS]
    assert verdict.suites[0].commits == ("4be1d0c5a3f2",)


def test_a_damaged_method_is_a_regression_in_verdict_and_pages(spec, tonight):
    fill(tonight, damaged)
    verdict = judged(spec, tonight)
    assert (verdict.status, verdict.exit_code) == ("regression", 3)
    assert {(change.method, change.budget) for change in verdict.regressions} == {("knorm", None), ("knorm", "50%")}
    assert "knorm (tiny)" in verdict.headline
    for text in (markdown(verdict), html(verdict)):
        assert "Worse" in text
        assert "73.3%" in text
        assert "50%, niah" in text
    assert NightVerdict.model_validate_json(verdict.model_dump_json()) == verdict


def test_the_alarm_stays_on_until_it_is_accepted(spec):
    nights = Nights.of(spec)
    for number in (2, 3):
        fill(nights.night(date(number)), damaged)
        assert judged(spec, nights.night(date(number))).exit_code == 3
    assert nights.reference(date(4), spec.compare) == [nights.night(date(1)), nights.night(date(0))]
    accepted = spec.model_copy(update={"compare": spec.compare.model_copy(update={"since": date(4)})})
    for number in (4, 5):
        fill(nights.night(date(number)), damaged)
        assert judged(accepted, nights.night(date(number))).exit_code == 0
    assert nights.reference(date(6), accepted.compare) == [nights.night(date(5)), nights.night(date(4))]


def test_failed_rows_and_failed_steps_are_failures(spec, tonight):
    fill(tonight, lambda method, sample: None if sample == 0 else right(method, sample))
    verdict = judged(spec, tonight)
    assert (verdict.status, verdict.exit_code, verdict.suites[0].failed) == ("failures", 1, 2)
    tonight.save(NightRecord(steps={"tiny/eval": StepRecord(status="failed", exit_code=-9)}))
    verdict = judged(spec, tonight)
    assert "tiny/eval did not end well" in verdict.headline
    assert "ended by SIGKILL" in markdown(verdict)


def test_samples_that_tonight_lacks_are_told(spec, tonight):
    fill(tonight, lambda method, sample: None if sample < 3 else right(method, sample))
    assert judged(spec, tonight).notes == ("tiny: 6 scores of the night before have none tonight and are not compared",)


def test_questions_on_one_text_are_one_piece_of_evidence(spec, tonight):
    """The loss that is an alarm on thirty texts is none where all questions are about two."""
    fill(tonight, damaged, group=None)
    assert judged(spec, tonight).regressions
    fill(tonight, damaged, group="one text", created_at=dt.datetime(2027, 1, 1, tzinfo=dt.UTC))
    assert not judged(spec, tonight).regressions


def test_a_page_says_what_few_earlier_nights_cannot_tell(spec, tonight):
    fill(tonight)
    assert "Before there are 3 earlier nights" in markdown(judged(spec, tonight))
    later = Nights.of(spec).night(date(3))
    fill(later)
    assert len(judged(spec, later).reference) == 3
    assert "Before there are" not in markdown(judged(spec, later))


def test_a_night_without_any_row_is_a_failure(spec, tonight):
    verdict = judged(spec, tonight)
    assert (verdict.status, verdict.suites[0].rows) == ("failures", 0)
    tonight.save(NightRecord(steps={"tiny/eval": StepRecord(status="done", exit_code=0)}))
    assert "a suite has no rows" in judged(spec, tonight).headline
    assert "no score tonight (knorm, snapkv)" in verdict.notes[0]


def test_times_warn_on_the_same_device_only(spec, tonight):
    fill(tonight, decode_seconds=30.0)
    verdict = judged(spec, tonight)
    assert verdict.status == "fine"
    assert {(s.method, s.measure) for s in verdict.slowdowns} == {
        (method, measure) for method in METHODS for measure in ("decoding a batch", "decoding a token")
    }
    assert "3.1x" in markdown(verdict)
    other = Nights.of(spec).night(date(3))
    fill(other, decode_seconds=90.0, device="another")
    assert judged(spec, other).slowdowns == ()


def test_new_and_lost_cells_are_told(spec, tonight):
    fill(tonight, benchmark_build="another")
    verdict = judged(spec, tonight)
    assert verdict.compared == 0
    assert [note.partition(" (")[0] for note in verdict.notes] == [
        "tiny: 2 cells are new and have no reference yet",
        "tiny: 2 cells of the night before have no score tonight",
    ]


def test_code_that_changed_during_the_night_is_told(spec, tonight):
    fill(tonight, git_commit="aaa")
    fill(tonight, lambda method, sample: None if sample < 5 else right(method, sample), git_commit="bbb")
    assert judged(spec, tonight).notes == ("tiny: the code changed while the night ran (aaa, bbb)",)


def test_pages_escape_what_they_show(spec, tonight):
    fill(tonight, damaged, git_commit=HOSTILE)
    page = html(judged(spec, tonight))
    assert "<script" not in page
    assert "&lt;/script&gt;" in page

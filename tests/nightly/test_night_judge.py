"""From stored rows to a verdict, its pages and its exit code."""

import datetime as dt
import json
import shutil

import pytest
import two_weeks
from documented import REPOSITORY
from night_rows import METHODS, SAMPLES, date, fill, judged, nightly_spec, right, steps
from report_rows import HOSTILE

from indexmem.commands.nightly import freeze
from indexmem.nightly.night import NightRecord, Nights, StepRecord
from indexmem.nightly.pages import html, markdown
from indexmem.nightly.steps import freeze_specs
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


def test_fewer_cells_or_samples_are_lost_coverage_until_they_are_back_or_accepted(spec, tonight):
    fill(tonight, methods=METHODS[:1], samples=20)
    verdict = judged(spec, tonight)
    assert (verdict.status, verdict.exit_code) == ("coverage", 5)
    assert [(lost.method, lost.where, lost.samples) for lost in verdict.lost] == [
        ("knorm", "50%, niah", 10),
        ("snapkv", "50%, niah", 30),
    ]
    assert "set compare.coverage_since=2026-11-03" in markdown(verdict)
    nights = Nights.of(spec)
    fill(nights.night(date(3)), methods=METHODS[:1], samples=20)
    assert judged(spec, nights.night(date(3))).status == "coverage"
    since = spec.compare.model_copy(update={"coverage_since": date(2)})
    accepted = spec.model_copy(update={"compare": since})
    fill(nights.night(date(4)), methods=METHODS[:1], samples=20)
    verdict = judged(accepted, nights.night(date(4)))
    assert (verdict.status, len(verdict.reference)) == ("fine", 3), "scores are compared as before"
    fill(nights.night(date(5)), methods=METHODS[:1], samples=10)
    assert judged(accepted, nights.night(date(5))).status == "coverage"


def test_what_was_worse_cannot_be_left_out(spec, tonight):
    """A method that fell is taken out of the spec: its alarm does not end there."""
    fill(tonight, damaged)
    assert judged(spec, tonight).status == "regression"
    later = Nights.of(spec).night(date(3))
    fill(later, methods=("snapkv",))
    verdict = judged(spec, later)
    assert (verdict.status, [lost.method for lost in verdict.lost]) == ("coverage", ["knorm"])


def test_a_suite_that_is_gone_is_lost(spec, tonight):
    renamed = spec.model_copy(update={"suites": (spec.suites[0].model_copy(update={"name": "other"}),)})
    verdict = judged(renamed, tonight)
    assert {lost.suite for lost in verdict.lost} == {"tiny"}
    assert "2 cells of tiny are gone or short" in verdict.headline


def test_a_night_without_a_score_is_no_reference(tmp_path):
    spec = nightly_spec(tmp_path)
    nights = Nights.of(spec)
    fill(nights.night(date(0)), lambda method, sample: None)
    assert judged(spec, nights.night(date(0))).status == "failures"
    assert nights.reference(date(1), spec.compare) == []
    assert nights.whole(date(1), spec.compare) is None


def test_a_method_that_failed_for_a_week_is_held_against_the_nights_before(spec):
    nights = Nights.of(spec)
    for number in range(2, 9):
        fill(nights.night(date(number)), lambda method, sample: None if method == "knorm" else right(method, sample))
        assert judged(spec, nights.night(date(number))).status == "failures"
    back = nights.night(date(9))
    fill(back, damaged)
    assert {change.method for change in judged(spec, back).regressions} == {"knorm"}


def test_a_training_whose_loss_rises_is_a_regression_where_scores_show_none(spec, tonight):
    nights = Nights.of(spec)
    for number, loss in ((2, 0.20), (3, 0.21), (4, 0.20), (5, 0.22)):
        night = nights.night(date(number))
        fill(night)
        assert judged(spec, night, {"loss indexer": loss}).status == "fine"
    later = nights.night(date(6))
    fill(later)
    verdict = judged(spec, later, {"loss indexer": 0.5})
    assert (verdict.status, verdict.regressions) == ("regression", ())
    assert verdict.headline == "Regression: loss indexer 0.21 -> 0.5."
    assert nights.reference(date(7), spec.compare)[0] == nights.night(date(5))
    again = nights.night(date(7))
    fill(again)
    assert [(lost.method, lost.where) for lost in judged(spec, again).lost] == [("loss indexer", "training")]


def test_what_changed_between_nights_is_named(tmp_path):
    spec = nightly_spec(tmp_path)
    nights = Nights.of(spec)
    facts = [("memory: {gate_bias: 1}", "aaa", "2.12"), ("memory: {gate_bias: -30}", "bbb", "2.13")]
    for number, (settings, commit, torch) in enumerate(facts):
        (tmp_path / "tiny.yaml").write_text(f"name: tiny\n{settings}\n")
        night = nights.night(date(number))
        freeze_specs(night, steps(spec, night), freeze)
        fill(night, git_commit=commit, versions=json.dumps({"torch": torch}))
        verdict = judged(spec, night)
    assert {(each.what, each.before, each.now) for each in verdict.changed} == {
        ("memory.gate_bias", "1.0", "-30.0"),
        ("commit", "aaa", "bbb"),
        ("torch", "2.12", "2.13"),
    }
    assert verdict.headline == "Fine: 2 cells as on the night before; changed: memory.gate_bias, torch."
    assert "Since the last good night, 2026-11-01." in html(verdict)


def test_saturated_scores_are_called_out(spec, tonight):
    fill(tonight, lambda method, sample: float(method == "knorm"))
    verdict = judged(spec, tonight)
    assert verdict.saturated == 2
    assert verdict.notes == (
        "tiny: saturated cells (all samples right, no gain can show): knorm",
        "tiny: saturated cells (none right, no loss can show): snapkv",
    )


def test_an_improvement_is_in_the_headline_and_its_samples_on_the_page(spec, tonight):
    fill(tonight, lambda method, sample: max(right(method, sample), float(method == "knorm")))
    verdict = judged(spec, tonight)
    assert verdict.headline == "Fine: knorm (tiny) +26.7 points."
    assert {flip.sample for flip in verdict.flips} == {f"niah/{sample}" for sample in range(0, SAMPLES, 4)}
    assert all(flip.better == ("50%",) and not flip.worse for flip in verdict.flips)
    assert "niah/24" in html(verdict)


def test_pages_show_scores_over_nights_and_lead_to_what_is_beside_them(spec, tonight):
    fill(tonight, damaged)
    before = Nights.of(spec).verdicts(tonight.date, 30)
    report = tonight.suite("tiny") / "reports" / "tiny.html"
    report.parent.mkdir()
    report.write_text("")
    page = html(judged(spec, tonight), before)
    assert 'aria-label="73.3%, 73.3%, 50.0%"' in page
    assert page.count("<polyline") == len(METHODS)
    assert 'href="../2026-11-02/report.html"' in page
    assert 'href="tiny/reports/tiny.html"' in page
    assert "▆▆▅" in markdown(judged(spec, tonight), before)


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


def test_a_first_night_without_any_row_is_a_failure(tmp_path):
    spec = nightly_spec(tmp_path)
    night = Nights.of(spec).night(date(0))
    night.save(NightRecord(steps={"tiny/eval": StepRecord(status="done", exit_code=0)}))
    verdict = judged(spec, night)
    assert (verdict.status, verdict.headline) == ("failures", "Failures: a suite has no rows.")


@pytest.fixture
def later(spec, tonight):
    """The night after three that took equally long."""
    fill(tonight)
    judged(spec, tonight)
    return Nights.of(spec).night(date(3))


def slower(spec, night, **columns):
    """Of a night with these columns."""
    shutil.rmtree(night.folder, ignore_errors=True)
    fill(night, **columns)
    return [(slow.method, slow.measure) for slow in judged(spec, night).slowdowns]


def test_times_warn_on_the_same_device_after_three_nights(spec, tonight, later):
    assert slower(spec, later, decode_seconds=30.0) == [("all methods", "decoding a batch")]
    assert later.verdict().headline == "Fine: 2 cells as on the 3 nights before; slower: all methods."
    scoring = lambda method: 1.8 if method == "knorm" else 0.18  # noqa: E731
    assert slower(spec, later, score_seconds=scoring) == [("knorm", "scoring a context")]
    assert slower(spec, later, decode_seconds=30.0, device="another") == []
    assert slower(spec, tonight, decode_seconds=30.0) == [], "two nights tell of no spread"


def test_a_loaded_machine_and_what_nobody_feels_are_not_slower(spec, tonight, later):
    assert slower(spec, later, prefill_seconds=24.4, score_seconds=0.72, decode_seconds=38.4) == []
    assert slower(spec, later, score_seconds=0.4) == [], "twice as long, and a thirtieth of the prefill"
    for number, night in enumerate(Nights.of(spec).all()):
        slower(spec, night, prefill_seconds=0.001, score_seconds=0.0001, decode_seconds=0.01 + 0.01 * number)
    assert slower(spec, later, prefill_seconds=0.001, score_seconds=0.004, decode_seconds=0.05) == [], "load and clocks"
    assert slower(spec, later, prefill_seconds=0.001, score_seconds=0.04, decode_seconds=0.05) != []


@pytest.mark.parametrize("change", [{"benchmark_build": "another"}, {"question_aware": True}])
def test_other_samples_and_another_protocol_are_new_and_those_of_before_lost(spec, tonight, change):
    fill(tonight, **change)
    verdict = judged(spec, tonight)
    assert (verdict.compared, verdict.status, len(verdict.lost)) == (0, "coverage", 2)
    assert verdict.notes == ("tiny: 2 cells are new and have no reference yet",)


def test_code_that_changed_during_the_night_is_told(spec, tonight):
    fill(tonight, git_commit="aaa")
    fill(tonight, lambda method, sample: None if sample < 5 else right(method, sample), git_commit="bbb")
    assert judged(spec, tonight).notes == ("tiny: the code changed while the night ran (aaa, bbb)",)


def test_pages_escape_what_they_show(spec, tonight):
    fill(tonight, damaged, git_commit=HOSTILE)
    page = html(judged(spec, tonight))
    assert "<script" not in page
    assert "&lt;/script&gt;" in page


def test_two_weeks_are_judged_right_and_documented(tmp_path):
    found = two_weeks.verdicts(tmp_path)
    for number, (each, verdict) in enumerate(zip(two_weeks.NIGHTS, found), start=1):
        assert (verdict.status, len(verdict.slowdowns)) == (each.status, each.slower), f"night {number}"
    assert two_weeks.table(found) in (REPOSITORY / "docs" / "operations.md").read_text(encoding="utf-8")

"""Which nights are kept, and which are compared with."""

import pytest
from night_rows import date, fill, judged, nightly_spec

from indexmem.config.nightly import RetentionConfig
from indexmem.nightly.night import NightRecord, Nights, StepRecord
from indexmem.nightly.pages import nights_table


def test_a_reference_is_judged_earlier_and_has_rows(tmp_path):
    spec = nightly_spec(tmp_path)
    nights = Nights.of(spec)
    for number in range(6):
        fill(nights.night(date(number)))
        if number != 3:
            judged(spec, nights.night(date(number)))
    nights.night(date(1)).forget_rows()
    assert [night.date for night in nights.reference(date(5), spec.compare)] == [date(4), date(2), date(0)]
    one = spec.compare.model_copy(update={"nights": 1})
    assert [night.date for night in nights.reference(date(9), one)] == [date(5)]
    late = spec.compare.model_copy(update={"since": date(4)})
    assert [night.date for night in nights.reference(date(9), late)] == [date(5), date(4)]


def test_old_nights_lose_modules_then_rows_but_not_their_verdict(tmp_path):
    spec = nightly_spec(tmp_path)
    nights = Nights.of(spec)
    for number in range(5):
        night = nights.night(date(number))
        fill(night)
        (night.suite("tiny") / "distill" / "weights").write_text("trained")
        judged(spec, night)
    nights.forget(RetentionConfig(rows=3, modules=2), kept=[nights.night(date(1))])
    left = {night.date: (night.has_rows, (night.folder / "distill" / "weights").exists()) for night in nights.all()}
    assert left == {
        date(4): (True, True),
        date(3): (True, True),
        date(2): (True, False),
        date(1): (True, True),  # serves as reference
        date(0): (False, False),
    }
    assert all(night.verdict() for night in nights.all())


def test_suites_of_a_night_share_their_trainings(tmp_path):
    night = Nights(tmp_path).night(date(0))
    for _ in range(2):
        first, second = night.make_suite("first"), night.make_suite("second")
    (first / "distill" / "id").mkdir()
    assert (second / "distill" / "id").is_dir()


def test_the_record_survives(tmp_path):
    night = Nights(tmp_path).night(date(0))
    record = NightRecord().updated("a/eval", StepRecord(seconds=2.0, gpu_seconds=8.0)).updated("b/eval", StepRecord())
    night.save(record)
    assert night.record() == record
    assert (record.seconds, record.gpu_seconds) == (2.0, 8.0)


@pytest.mark.parametrize("content", ["", "[]", '{"steps": 3}', "{"])
def test_a_damaged_record_or_verdict_counts_as_missing(tmp_path, content):
    night = Nights(tmp_path).night(date(0))
    night.save(NightRecord().updated("a/eval", StepRecord()))
    for path in (night.folder / "record.json", night.verdict_file):
        path.write_text(content)
    with pytest.warns(RuntimeWarning, match=r"record\.json is damaged .* and counts as missing"):
        assert night.record() == NightRecord()
    with pytest.warns(RuntimeWarning, match=r"verdict\.json is damaged"):
        assert night.verdict() is None


def test_the_table_lists_the_newest_first(tmp_path):
    spec = nightly_spec(tmp_path)
    nights = Nights.of(spec)
    assert "no nights yet" in nights_table(nights, 5)
    for number in range(3):
        fill(nights.night(date(number)))
    judged(spec, nights.night(date(0)))
    _, *lines = nights_table(nights, 5).splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["2026-11-03", "unfinished"],
        ["2026-11-02", "unfinished"],
        ["2026-11-01", "fine"],
    ]
    assert len(nights_table(nights, 2).splitlines()) == 3

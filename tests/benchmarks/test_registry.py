"""Names and settings -> benchmarks."""

from __future__ import annotations

import pytest

from indexmem.benchmarks import registry
from indexmem.benchmarks.listing import benchmark_listing, entries_of, told
from indexmem.benchmarks.registry import BENCHMARKS, get_benchmark, make_benchmarks
from indexmem.benchmarks.ruler.niah import NeedleTask
from indexmem.config.schema import BenchmarkConfig, GridConfig
from indexmem.errors import UserError


def needles(*, keys: int = 1, name: str = "needles"):
    return [NeedleTask(name=f"{name}_{number}", keys=keys) for number in (1, 2)]


@pytest.fixture
def with_suite(monkeypatch):
    monkeypatch.setattr(registry, "BENCHMARKS", {**BENCHMARKS, "needles": needles})


def make(name: str, **params):
    return make_benchmarks([BenchmarkConfig(name=name, params=params)])


def test_the_default_grid_names_only_known_benchmarks():
    assert [b.name for b in make_benchmarks(GridConfig().benchmarks)] == [c.name for c in GridConfig().benchmarks]


def test_a_suite_gives_its_members_with_the_settings(with_suite):
    assert [(b.name, b.keys) for b in make("needles", keys=3)] == [("needles_1", 3), ("needles_2", 3)]


@pytest.mark.parametrize(("params", "named"), [({"kyes": 3}, "kyes"), ({"keys": "many"}, "keys")])
def test_a_wrong_setting_names_all_that_there_are(with_suite, params, named):
    with pytest.raises(UserError, match=f"'needles' cannot take these params: {named}: .*keys: int = 1"):
        make("needles", **params)


def test_a_benchmark_that_comes_twice_is_refused(with_suite):
    with pytest.raises(UserError, match="gives needles_1, needles_2 more than once"):
        make_benchmarks([BenchmarkConfig(name="needles"), BenchmarkConfig(name="needles", params={"keys": 2})])


def test_a_typo_names_the_nearest_and_all():
    with pytest.raises(UserError, match="Did you mean 'niah_single_1'") as error:
        get_benchmark("niah_singel_1")
    assert all(name in str(error.value) for name in BENCHMARKS)


def test_a_far_off_name_gets_no_guess():
    with pytest.raises(UserError, match="Unknown benchmark 'xyz'") as error:
        get_benchmark("xyz")
    assert "Did you mean" not in str(error.value)


def test_the_mapping_cannot_be_changed():
    with pytest.raises(TypeError):
        BENCHMARKS["mine"] = None  # type: ignore[index]


def test_every_benchmark_is_told_of_and_nothing_else():
    about = {name: list(entries_of(name)) for name in BENCHMARKS}
    assert [name for name, entries in about.items() if not entries] == []
    assert set(told()) == {entry for entries in about.values() for entry in entries}
    listed = benchmark_listing()
    assert (
        "\nruler_dataset\n    13, as others made them\n    languages: en   licence: Apache-2.0   needs: hub or"
        in listed
    )
    assert "sets=" in listed

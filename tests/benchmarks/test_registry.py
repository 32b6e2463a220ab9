"""Names -> benchmarks."""

from __future__ import annotations

import pytest

from indexmem.benchmarks.registry import BENCHMARKS, get_benchmark
from indexmem.config.schema import GridConfig
from indexmem.errors import UserError


def test_every_name_finds_its_own_benchmark():
    assert all(get_benchmark(name).name == name for name in BENCHMARKS)


def test_the_default_grid_names_only_known_benchmarks():
    assert set(GridConfig().benchmarks) <= set(BENCHMARKS)


def test_a_typo_names_the_nearest_and_all():
    with pytest.raises(UserError, match="Did you mean 'niah_single_1'") as error:
        get_benchmark("niah_singel_1")
    assert all(name in str(error.value) for name in BENCHMARKS)


def test_a_far_off_name_gets_no_guess():
    with pytest.raises(UserError, match="No benchmark is called 'xyz'") as error:
        get_benchmark("xyz")
    assert "Did you mean" not in str(error.value)


def test_the_mapping_cannot_be_changed():
    with pytest.raises(TypeError):
        BENCHMARKS["mine"] = None  # type: ignore[index]

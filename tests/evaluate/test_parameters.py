"""Wrong parameters are said when a grid is planned, and a method that fails all the same costs its own rows only."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tiny_models import random_ids, tiny_backbone

from indexmem.config.budget import Budget
from indexmem.config.schema import EvictionConfig, MethodConfig
from indexmem.errors import UserError
from indexmem.evaluate.checks import check_parameters
from indexmem.evaluate.compress import compress_cells
from indexmem.evaluate.work import GridCell
from indexmem.eviction.methods.base import MethodContext
from indexmem.eviction.methods.registry import make_method
from indexmem.eviction.methods.simple import Random
from indexmem.eviction.selection import PerHead

CONTEXT = MethodContext(tiny_backbone().geometry)


def checked(config: MethodConfig) -> None:
    """As a plan does it."""
    make_method(config, CONTEXT)
    check_parameters(config, CONTEXT)


WRONG = [
    ("snapkv", {"window_size": 32.5}),
    ("snapkv", {"window_size": 0}),
    ("snapkv", {"window_size": "64"}),
    ("snapkv", {"window_size": -3}),
    ("snapkv", {"kernel_size": 0}),
    ("snapkv", {"kernel_size": 4}),
    ("snapkv", {"share": "model", "kernel_size": 4}),
    ("pyramidkv", {"beta": 0}),
    ("pyramidkv", {"beta": "steep"}),
    ("lagkv", {"lag_size": 0}),
    ("lagkv", {"n_sink": "four"}),
    ("cur", {"local_window_size": 0}),
    ("cur", {"leverage_type": "sum"}),
    ("cur", {"seed": "abc"}),
    ("random", {"seed": "abc"}),
    ("random", {"seed": 1.5}),
    ("streaming_llm", {"n_sink": "4"}),
    ("leverage", {"sketch_dimension": 0}),
    ("leverage", {"seed": None}),
    ("non_causal_attention", {"chunk_size": 0}),
    ("compactor", {"sketch_dimension": -1}),
    ("compactor", {"blending": "much"}),
    ("expected_attention", {"n_future_positions": "512"}),
    ("expected_attention", {"use_vnorm": "yes"}),
    ("cap", {"tau": "hot"}),
    ("kvzip", {"chunk_size": 12.5}),
    ("xkv", {"group": "all"}),
    ("adakv", {"base": {"name": "snapkv", "params": {"window_size": 0}}}),
    ("criticalkv", {"base": {"name": "lagkv", "params": {"lag_size": 0}}}),
    ("running_mean", {"base": {"name": "cur", "params": {"local_window_size": 0}}}),
]


@pytest.mark.parametrize(("name", "params"), WRONG)
def test_a_wrong_parameter_is_said(name, params):
    with pytest.raises(UserError, match="Method '"):
        checked(MethodConfig(name=name, params=params))


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("snapkv", {"window_size": 4096, "kernel_size": 7}),
        ("pyramidkv", {"beta": 1, "window_size": 8}),
        ("lagkv", {"lag_size": 256, "n_sink": 0}),
        ("cur", {"leverage_type": "kv_avg", "use_random_leverage": True, "seed": 3}),
        ("expected_attention", {"epsilon": 1, "n_sink": 0}),
        ("compactor", {"blending": 0, "sink_size_end": 0}),
        ("xkv", {"group": 2, "key_share": 0.5}),
        ("random", {"share": "layer", "seed": 5}),
        ("running_mean", {"base": "snapkv", "gate": "peak", "gamma": 0.9}),
        ("indexer", {"checkpoint": "nowhere"}),  # belongs to a model: not tried
    ],
)
def test_parameters_that_work_pass(name, params):
    check_parameters(MethodConfig(name=name, params=params), CONTEXT)


def test_the_trial_draws_no_random_numbers_of_ours():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    check_parameters(MethodConfig(name="leverage", params={"seed": 2}), CONTEXT)
    assert torch.equal(torch.rand(2), expected)


class FailingSelection(PerHead):
    """As `Failing` says."""

    def __init__(self, maybe: Callable[[str], None]) -> None:
        super().__init__()
        object.__setattr__(self, "maybe", maybe)

    def rank(self, scores_HL, sinks):
        self.maybe("rank")
        return super().rank(scores_HL, sinks)

    def choose(self, rankings, tokens, target):
        self.maybe("choose")
        return super().choose(rankings, tokens, target)


class Failing(Random):
    """Raises in one of the places where a method is asked."""

    def __init__(self, place: str, error: type[Exception]) -> None:
        super().__init__()
        self.place, self.error = place, error
        self.selection = FailingSelection(self._maybe)

    def _maybe(self, place: str) -> None:
        if place == self.place:
            raise self.error("on purpose")

    def score(self, tap):
        self._maybe("score")
        return super().score(tap)

    def indexer_bytes(self, lengths, element_size):
        self._maybe("bytes")
        return 0


@pytest.mark.parametrize(
    "error", [AssertionError, ZeroDivisionError, KeyError, TypeError, AttributeError, RuntimeError]
)
@pytest.mark.parametrize("place", ["score", "rank", "choose", "bytes"])
def test_whatever_a_method_raises_costs_its_own_rows(place, error):
    methods = {"good": Random(), "bad": Failing(place, error), "other": Random(seed=1)}
    cells = [GridCell(name, MethodConfig(name=name), Budget.of_ratio(0.5), "b", "b", "") for name in methods]
    done = compress_cells(tiny_backbone(), random_ids(60), cells, methods, EvictionConfig())
    assert done.ready.keys() == {"good", "other"}
    assert isinstance(done.errors["bad"], error)
    assert "on purpose" in str(done.errors["bad"])


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError, torch.AcceleratorError])
def test_what_the_machine_raises_is_not_a_method_s(error):
    methods = {"good": Random(), "bad": Failing("score", error)}
    cells = [GridCell(name, MethodConfig(name=name), Budget.of_ratio(0.5), "b", "b", "") for name in methods]
    with pytest.raises(error):
        compress_cells(tiny_backbone(), random_ids(60), cells, methods, EvictionConfig())

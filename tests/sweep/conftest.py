"""Specs of sweeps, for tests that start no Ray."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from indexmem.config.load import validate
from indexmem.config.schema import Experiment


@pytest.fixture
def sweep_spec() -> Callable[..., Experiment]:
    """Makes a spec from the section `sweep`; `sections` are others. Its indexer scores pairs, so it has a `dim`."""

    def make(sweep: dict[str, Any], **sections: Any) -> Experiment:
        return validate({"name": "s", "indexer": {"pair_term": True}, "sweep": sweep, **sections}, "spec")

    return make

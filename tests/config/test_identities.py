"""Which settings name a cell: those that differ from their defaults, so that new ones rename nothing."""

from __future__ import annotations

from indexmem.config.decoding import DecodingConfig
from indexmem.config.load import validate, with_overrides, with_settings
from indexmem.config.schema import EvictionConfig
from indexmem.config.spec import as_said


def test_a_setting_at_its_default_is_in_no_identity() -> None:
    assert EvictionConfig().identity == EvictionConfig(sinks=4, decode_every=128).identity == {}
    assert DecodingConfig().identity == {}
    assert DecodingConfig(temperature=0.5, top_p=1.0, repeats=3).identity == {"decoding": {"temperature": 0.5}}


def test_a_setting_that_came_later_renames_no_cell() -> None:
    class Later(EvictionConfig):
        stride: int = 1

    assert Later(sinks=2).identity == EvictionConfig(sinks=2).identity == {"sinks": 2}
    assert Later(sinks=2, stride=2).identity == {"sinks": 2, "stride": 2}


def test_defaults_that_identities_leave_out_are_these() -> None:
    """Rows at a default do not say which: with another default they would be taken for rows of the new one.

    Whoever changes a default raises ENGINE_VERSION, and then this test.
    """
    eviction = {"sinks": 4, "equal_bytes": False, "when": "after_prefill", "granularity": "head", "block": 1}
    eviction |= {"decode_budget": None, "decode_every": 128, "decode_window": 128}
    decoding = {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "repeats": 1}
    assert EvictionConfig().model_dump() | eviction == EvictionConfig().model_dump()
    assert DecodingConfig().model_dump() | decoding == DecodingConfig().model_dump()


def test_a_spec_that_travels_says_no_more_than_its_author() -> None:
    """A checkpoint may differ from a default, not from what somebody wrote: a dump must not make one of the other."""
    spec = validate({"name": "x", "indexer": {"checkpoint": "testbed-modules"}, "grid": {"methods": ["knorm"]}}, "test")
    for travelled in (validate(as_said(spec), "there"), with_overrides(spec, []), with_settings(spec, {}, "axes")):
        assert travelled == spec
        assert travelled.indexer.model_fields_set == {"checkpoint"}

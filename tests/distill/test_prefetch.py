"""Data made ahead: in order, never far ahead, and gone when its reader is."""

import threading
import time
from itertools import count

import pytest

from indexmem.distill.prefetch import AHEAD, prefetched


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


def test_all_items_come_in_their_order_and_the_thread_ends():
    with prefetched(iter(range(50))) as items:
        assert list(items) == list(range(50))
    assert threads() == []


def test_items_are_made_before_they_are_asked_for_but_not_many():
    made = []
    with prefetched(made.append(number) or number for number in count()) as items:
        assert next(items) == 0
        deadline = time.monotonic() + 30
        while len(made) < AHEAD + 1 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)
        assert len(made) == AHEAD + 1
    assert threads() == []


def test_what_goes_wrong_is_raised_in_its_place():
    def items():
        yield 1
        raise ValueError("document 7 is broken")

    with prefetched(items()) as made:
        assert next(made) == 1
        with pytest.raises(ValueError, match="document 7"):
            next(made)
    assert threads() == []


def test_a_reader_that_fails_leaves_no_thread():
    def train():
        with prefetched(count()) as items:
            next(items)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train()
    assert threads() == []

"""Work done ahead by a thread, so that training does not wait for its data."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

AHEAD = 4  # items made in advance

T = TypeVar("T")


@contextmanager
def prefetched(items: Iterator[T], ahead: int = AHEAD) -> Iterator[Iterator[T]]:
    """The items, in their order, made by a thread that ends with the `with` block, whatever ends that.

    What `items` raises is raised to the reader in its place. Fast tokenizers release the interpreter while they work,
    so a thread is enough.
    """
    thread = ThreadPoolExecutor(1, "prefetch")
    waiting = deque(thread.submit(next, items) for _ in range(ahead))

    def read() -> Iterator[T]:
        while True:
            try:
                item = waiting.popleft().result()
            except StopIteration:
                return
            waiting.append(thread.submit(next, items))
            yield item

    try:
        yield read()
    finally:
        thread.shutdown(cancel_futures=True)

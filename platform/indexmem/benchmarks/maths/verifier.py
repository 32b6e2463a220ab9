"""math-verify in a process of its own, which is ended when it takes too long.

math-verify's own timeouts use SIGALRM: they fail outside a process's main thread, and sympy can sit in C code for
minutes where no signal reaches it. So they are turned off, and the process is the timeout.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

SECONDS = 10.0  # for one comparison; usual ones take milliseconds
START_SECONDS = 120.0  # to import sympy on a busy machine


@dataclass
class Verifier:
    """Compares expressions. The process starts at the first comparison, and again after one that was ended.

    Copies of it, in other processes too, have processes of their own.
    """

    seconds: float = SECONDS
    _process: BaseProcess | None = field(default=None, init=False, repr=False)
    _pipe: Connection | None = field(default=None, init=False, repr=False)

    def equal(self, reference: str, answer: str) -> bool:
        """Whether two LaTeX expressions mean the same. Not symmetric: `reference` decides what form is asked for.

        False when it cannot be told: not parsed, or not within `seconds`.
        """
        pipe = self._ready_pipe()
        try:
            pipe.send((reference, answer))
            if pipe.poll(self.seconds):
                return bool(pipe.recv())
        except (EOFError, OSError):  # it died, as when memory runs out
            pass
        self.close()
        return False

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None

    def __getstate__(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "_process": None, "_pipe": None}

    def _ready_pipe(self) -> Connection:
        if self._pipe is None:
            context = get_context("spawn")  # a fork would inherit the model's threads in whatever state they are
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
            self._process.start()
            theirs.close()
            self._pipe.poll(START_SECONDS)
            self._pipe.recv()
        return self._pipe


def _serve(pipe: Connection) -> None:
    """Answers until the other end is closed."""
    from math_verify import parse, verify

    pipe.send("ready")
    while True:
        try:
            expressions = pipe.recv()
        except EOFError:
            return
        reference, answer = (parse(rf"\boxed{{{text}}}", parsing_timeout=None) for text in expressions)
        pipe.send(verify(reference, answer, timeout_seconds=None))

"""`python -m indexmem.commands.nightly_step VERB SPEC`: a verb that ends when the process that started it does.

Whoever starts it keeps the other end of its standard input open. When that end closes, even by SIGKILL, the verb is
asked to stop. Stopping takes a while, so the verb of a night that was started again waits for its own orphan.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import time
from pathlib import Path

from indexmem.cli import main
from indexmem.config.load import load
from indexmem.config.nightly import LAST_LOSSES
from indexmem.files import write_whole
from indexmem.locks.leases import hold
from indexmem.nightly.process import SOME_FAILED

STOP_SECONDS = 60.0  # to end after SIGTERM


def end_with_parent() -> None:
    """Wait for the end of standard input, then ask this process to stop, and see to it that it does."""
    while os.read(0, 1024):  # not sys.stdin, whose lock the interpreter needs at its own end
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


def keep_losses(spec: Path) -> None:
    """Write each module's loss over the last steps beside the spec, for the night's verdict."""
    from indexmem.distill.history import recent_losses
    from indexmem.distill.runs import DistillRun  # torch, which the training has loaded

    if history := DistillRun.of(load(spec)).read_history():
        losses = {name: loss for name, loss in recent_losses(history).items() if math.isfinite(loss)}
        write_whole(spec.parent / LAST_LOSSES, json.dumps(losses))


def run_alone(arguments: list[str]) -> int:
    """Run the verb once no other process runs one on the same spec. Returns its exit code, with SOME_FAILED for 1."""
    with hold(Path(arguments[1]).parent / "leases", "step", wait=lambda lease: None):
        code = main(arguments)
    if arguments[0] == "distill" and code == 0:
        keep_losses(Path(arguments[1]))
    return SOME_FAILED if code == 1 else code


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, daemon=True).start()
    sys.exit(run_alone(sys.argv[1:]))

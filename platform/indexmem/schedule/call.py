"""The nightly command, as schedulers are told to call it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from indexmem.config.nightly import NightlySpec

# Passed on when they are set at installation. What may hold a secret is not: it belongs into the file below.
VARIABLES = ("INDEXMEM_HOME", "INDEXMEM_GIT_COMMIT", "HF_HOME", "HF_HUB_OFFLINE", "RAY_ADDRESS")
SECRETS = Path(".config/indexmem/nightly.env")  # below the home folder; lines of NAME=VALUE
STOP_SECONDS = 120  # for a night to store what it is working on


@dataclass(frozen=True)
class Call:
    """The command as a scheduler runs it."""

    spec: NightlySpec
    path: Path  # of the nightly spec
    overrides: Sequence[str] = ()

    @property
    def name(self) -> str:
        """Of units, crontab block and CronJob."""
        return re.sub(r"[^a-z0-9-]+", "-", f"indexmem-{self.spec.name}".lower()).strip("-")

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "indexmem", "nightly", "run", str(self.path), *self.overrides]

    @property
    def environment(self) -> dict[str, str]:
        return {name: os.environ[name] for name in VARIABLES if name in os.environ}

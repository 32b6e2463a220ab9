"""How kernels are tested: on a CUDA device as compiled, elsewhere by Triton's interpreter in a process of its own.

Triton decides when it is imported, for the whole process, whether it interprets. So without a GPU each file here is one
test: it runs the file in a process with TRITON_INTERPRET=1, in which nothing else runs. By hand, test by test:

    TRITON_INTERPRET=1 python -m pytest tests/kernels/test_indexer_max.py
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
LAST_CHARACTERS = 5000  # of a failed file's output


@pytest.fixture(scope="session")
def device() -> str:
    """Where kernels run; of the session, so that hypothesis may use it."""
    return "cpu" if INTERPRETED else "cuda"


class InterpretedFile(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        yield InterpretedRun.from_parent(self, name="interpreted")


class InterpretedRun(pytest.Item):
    def runtest(self) -> None:
        if find_spec("triton") is None:
            pytest.skip("needs Triton: pip install -e '.[test]' on Linux")
        env = {**os.environ, "TRITON_INTERPRET": "1"}
        env.pop("PYTEST_ADDOPTS", None)
        command = [sys.executable, "-m", "pytest", str(self.path), "-p", "no:cacheprovider"]
        done = subprocess.run(command, cwd=self.config.rootpath, env=env, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.fail(f"{' '.join(command)}\n{done.stdout[-LAST_CHARACTERS:]}{done.stderr[-1000:]}", pytrace=False)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.File | None:
    if INTERPRETED or torch.cuda.is_available():
        return None  # as any other file
    return InterpretedFile.from_parent(parent, path=module_path)


def pytest_itemcollected(item: pytest.Item) -> None:
    """What runs as compiled needs a GPU."""
    if not INTERPRETED and not isinstance(item, InterpretedRun):
        item.add_marker("gpu")

"""Settings for the whole suite; must come before transformers and Ray are imported."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

if "INDEXMEM_CACHE" not in os.environ:  # processes that tests start inherit it
    os.environ["INDEXMEM_CACHE"] = tempfile.mkdtemp(prefix="indexmem-cache-")
    atexit.register(shutil.rmtree, os.environ["INDEXMEM_CACHE"], ignore_errors=True)
# Processes that tests start find the second package as pytest does (`pythonpath` in pyproject.toml), installed or not.
TESTBED = str(Path(__file__).parent / "indexmem-testbed")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), TESTBED)))
os.environ.setdefault("OMP_NUM_THREADS", "1")  # several tests run at a time, and many start processes of their own
os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Ray gives its workers the lowest priority but four: beside another test that computes, they would hardly run at all.
os.environ.setdefault("RAY_worker_niceness", "0")

from hypothesis import settings  # noqa: E402

# Examples run beside Ray clusters and model loads on few cores: time says nothing about a property.
settings.register_profile("indexmem", deadline=None)
settings.load_profile("indexmem")

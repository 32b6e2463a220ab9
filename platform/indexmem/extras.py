"""Libraries that only some of the package needs, by the extra that brings them: `pip install 'indexmem[EXTRA]'`."""

from __future__ import annotations

import os
from importlib.util import find_spec

from indexmem.errors import UserError

JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # Ray gives it to the driver of a submitted job
# Modules that `pip install indexmem` brings.
DEPENDENCIES = {
    *("torch", "transformers", "kvpress", "pandas", "pyarrow", "pydantic", "yaml", "safetensors", "huggingface_hub"),
    *("gguf", "rich", "tqdm", "jinja2", "markupsafe", "numpy", "scipy"),
}


class MissingExtra(UserError, ImportError):
    """A library is not installed. The message says what to type."""


def need(extra: str, *libraries: str) -> None:
    """Raises MissingExtra, which names the extra, if one of the libraries is not installed. Imports none of them."""
    if absent := [library for library in libraries if find_spec(library) is None]:
        raise missing(extra, ", ".join(absent))


def missing(extra: str, library: str) -> MissingExtra:
    """The error for a library that could not be imported."""
    return MissingExtra(f"Not installed: {library}. Type: pip install 'indexmem[{extra}]'{_on_a_cluster()}")


def missing_dependency(error: ModuleNotFoundError) -> MissingExtra | None:
    """The error for a library that the package itself needs; None where somebody's own code lacks one."""
    library = (error.name or "").partition(".")[0]
    if library not in DEPENDENCIES:
        return None
    return MissingExtra(f"Not installed: {library}. Type: pip install indexmem{_on_a_cluster()}")


def _on_a_cluster() -> str:
    """What to type instead where a submitted job runs, on nodes that have Ray and little else."""
    if JOB_VARIABLE not in os.environ:
        return ""
    return " on the nodes, or send the job again so that it brings them: indexmem submit … --install uv"

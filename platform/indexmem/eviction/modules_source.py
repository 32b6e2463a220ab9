"""Where trained modules lie: a folder, a name that this package carries, or a repository of the Hub."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download

from indexmem.errors import UserError
from indexmem.files import expanded
from indexmem.models.assets import shipped_modules


def local_or_downloaded(source: str | Path) -> Path:
    """The folder that a path or a shipped name stands for, else the downloaded snapshot of that Hub id.

    Raises UserError if there is none.
    """
    if str(source) in shipped_modules():
        return shipped_modules()[str(source)]
    if expanded(source).is_dir():
        return expanded(source)
    try:
        return Path(snapshot_download(str(source)))
    except (OSError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"'{source}' is neither a checkpoint folder nor a Hub id that can be read: {reason}") from None

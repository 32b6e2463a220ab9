"""Where LongBench's items come from: the authors' archive on the hub, a copy of it, or a folder of JSON lines."""

from __future__ import annotations

import zipfile
from pathlib import Path

from indexmem.benchmarks.rows import BenchmarkRow, rows_of_folder, rows_of_lines
from indexmem.errors import UserError
from indexmem.fetching import about_to_fetch
from indexmem.files import expanded

HUB = "THUDM/LongBench"
ARCHIVE = "data.zip"  # holds data/<set>.jsonl; the repository's loading script is not needed, and never run
FIELDS = {"input": str, "context": str, "answers": list, "length": int, "language": str}


def read_items(path: str, file: str) -> list[BenchmarkRow]:
    """All items of one file (`qasper`, `qasper_e`) in order, `all_classes` a list; `path` is a hub id, a folder, or a
    copy of data.zip. Raises UserError when there are none to be had.
    """
    local = expanded(path)
    if local.is_dir():
        rows = rows_of_folder(local, file, f"LongBench's {ARCHIVE}, unpacked", FIELDS)
    else:
        rows = _read_archive(path, local, file)
    return [row | {"all_classes": row.get("all_classes") or []} for row in rows]


def _read_archive(path: str, local: Path, file: str) -> list[BenchmarkRow]:
    archive = local if local.is_file() else _fetch(path)
    member = f"data/{file}.jsonl"
    try:
        text = zipfile.ZipFile(archive).read(member).decode()
    except (OSError, zipfile.BadZipFile, KeyError, UnicodeDecodeError) as error:
        raise UserError(f"{archive}: {member} cannot be read from it ({error}).") from None
    return rows_of_lines(text, FIELDS, f"{archive}:{member}")


def _fetch(repository: str) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        return Path(hf_hub_download(repository, ARCHIVE, repo_type="dataset"))
    except (OSError, HfHubHTTPError, HFValidationError) as error:
        about_to_fetch(f"LongBench's {ARCHIVE} of {repository}")
        raise UserError(
            f"LongBench cannot be fetched from '{repository}': {str(error).splitlines()[0]} "
            f"Give the benchmark path=FOLDER with {ARCHIVE} unpacked, or path=FILE of the archive."
        ) from None

"""Code that computes answers has not changed unless somebody has said whether answers change.

`python tests/evaluate/test_engine_version.py` writes the committed hashes again.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

import indexmem
from indexmem.config.spec import content_hash
from indexmem.evaluate.version import ENGINE_VERSION
from indexmem.plugins.source import normalised

PACKAGE = Path(indexmem.__file__).parent
COMMITTED = Path(__file__).with_name("engine_code.json")
# What turns a prompt and a budget into an answer and its score; how it is scheduled, stored and shown is left out.
COMPUTES = (
    *("engine/*.py", "kernels/*.py", "eviction/*.py", "eviction/methods/*.py", "eviction/memory/*.py"),
    *("evaluate/cell.py", "evaluate/compress.py", "config/budget.py"),
    *("models/attention.py", "models/backbone.py", "models/projection.py", "models/packed.py"),
    *("models/prompt.py", "models/thinking.py"),
    *("benchmarks/scorers.py", "benchmarks/longbench/metrics.py", "benchmarks/maths/*.py", "benchmarks/own/*.py"),
    *("benchmarks/published/*.py", "benchmarks/scbench/*.py", "benchmarks/instructions/*.py"),
)
# Which methods there are, not what they do.
NAMES_ALONE = {"listing.py", "names.py", "registry.py", "foreign.py", "factories.py"}

CHANGED = """The code of {names} is not what engine {version} was recorded with.
If any answer or score may differ: raise ENGINE_VERSION in platform/indexmem/evaluate/version.py, so that old rows do
not count as rows of this code. If none can (a move, a new method, a faster way to the same bits): leave it.
Then record it, either way, and commit the file:
    python tests/evaluate/test_engine_version.py"""


def recorded_now() -> dict:
    """Hashes of today's code, without comments, docstrings and formatting."""
    paths = sorted({path for pattern in COMPUTES for path in PACKAGE.glob(pattern)})
    hashes = {str(path.relative_to(PACKAGE)): hash_of(path.read_text()) for path in paths if counts(path)}
    return {"engine": ENGINE_VERSION, "code": hashes}


def counts(path: Path) -> bool:
    return path.name not in NAMES_ALONE and path.name != "__init__.py"


def hash_of(text: str) -> str:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return content_hash(normalised(tree))


def difference(committed: dict, now: dict) -> str | None:
    """What to say; None where nothing has changed."""
    old, new = committed["code"], now["code"]
    names = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    if committed["engine"] != now["engine"]:
        names = names or ["nothing but the number"]
    return CHANGED.format(names=", ".join(names), version=committed["engine"]) if names else None


def test_changed_code_comes_with_a_word_on_answers():
    said = difference(json.loads(COMMITTED.read_text()), recorded_now())
    assert said is None, said


def test_an_edited_formula_is_noticed_and_a_comment_is_not():
    code = 'def score(key):\n    """Length."""\n    return key.norm()\n'
    assert hash_of(code) == hash_of('def score(key):\n    """Its length."""\n    # why\n    return (key.norm())\n')
    assert hash_of(code) != hash_of(code.replace("norm", "std"))
    before = {"engine": 2, "code": {"engine/decode.py": hash_of(code)}}
    assert difference(before, before) is None
    edited = {"engine": 2, "code": {"engine/decode.py": hash_of(code.replace("norm", "std"))}}
    assert "engine/decode.py" in difference(before, edited)
    assert difference(before, edited | {"engine": 3}) is not None, "the new number has to be recorded with its code"


if __name__ == "__main__":
    COMMITTED.write_text(json.dumps(recorded_now(), indent=1) + "\n")

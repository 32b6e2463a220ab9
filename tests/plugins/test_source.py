"""What code of somebody's own is hashed by."""

import sys

import pytest

from indexmem.plugins.load import find

SCORES = "from .helpers import half\n\ndef score(answer, right):\n    return half(1.0)\n"
HELPERS = "def half(x):\n    return x / 2\n"


@pytest.mark.parametrize(
    ("place", "attribute"), [("acme_source.scores", "score"), ("./acme_source/helpers.py", "half")]
)
def test_a_comment_changes_nothing_and_an_edit_does(place, attribute, tmp_path, monkeypatch):
    """In the file that is named, or in another module of its package."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "acme_source").mkdir()
    codes = []
    for helpers in (HELPERS, f"# why\n{HELPERS}", HELPERS.replace("2", "33")):
        for name, text in {"helpers": helpers, "scores": SCORES, "__init__": ""}.items():
            (tmp_path / "acme_source" / f"{name}.py").write_text(text)
        for name in [name for name in sys.modules if name.startswith("acme_source")]:
            del sys.modules[name]
        found = find("scorers", f"{place}:{attribute}")
        assert found is not None
        codes.append(found.code)
    assert codes[0] == codes[1]
    assert codes[2] != codes[0]

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexmem.config.spec import content_hash
from indexmem.config.text import TextConfig
from indexmem.errors import UserError
from indexmem.texts import files as text_files
from indexmem.texts.documents import BUILTIN_TEXTS, documents_hash, documents_of, is_heldout, load_texts, read_documents


def words(texts: list[str]) -> int:
    return sum(len(text.split()) for text in texts)


def test_essays_are_split_without_overlap_or_loss() -> None:
    train, heldout = documents_of("essays-train"), documents_of("essays-heldout")
    assert (len(train), len(heldout)) == (31, 18)
    assert sorted(train + heldout) == sorted(documents_of("essays"))
    assert words(heldout) >= 25_000, "haystacks must vary"
    assert words(train) > 2 * words(heldout)
    assert max(words([essay]) for essay in heldout) < words(heldout) / 3, "no single essay dominates"


def test_the_essay_split_is_by_file_name() -> None:
    assert is_heldout("popular.txt")
    assert not is_heldout("worked.txt")


def test_king_james_has_its_books_in_order_and_whole() -> None:
    books = documents_of("king-james")
    assert len(books) == 66
    assert books[0].startswith("In the beginning God created the heaven and the earth. And the earth was without form")
    assert books[-1].endswith("The grace of our Lord Jesus Christ be with you all. Amen.")
    assert [books[0].count("\n\n") + 1, books[18].count("\n\n") + 1] == [50, 150], "chapters of Genesis, Psalms"
    assert words(books) == 789_633


@pytest.mark.parametrize(
    ("name", "expected"), [("essays-heldout", "ab39453eba8b181b"), ("king-james", "f330ac2143e4ec0f")]
)
def test_built_in_texts_are_the_same_everywhere(name: str, expected: str) -> None:
    assert documents_hash(documents_of(name)) == expected == content_hash(documents_of(name))


def test_files_of_every_kind(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes("plain\r\nna\u00efve\rend ".encode())
    (tmp_path / "c.MD").write_text("# title")
    (tmp_path / "a.jsonl").write_text('{"text": "one", "context": "no"}\n\n{"context": "two\\r\\n"}\n{"text": " "}\n')
    (tmp_path / "sub").mkdir()
    pq.write_table(pa.table({"text": ["three", None], "n": [1, 2]}), tmp_path / "sub" / "d.parquet")
    (tmp_path / ".DS_Store").write_bytes(b"\xff")
    assert documents_of(str(tmp_path / "b.txt")) == ["plain\nna\u00efve\nend "]
    assert documents_of(str(tmp_path)) == ["one", "two\n", "plain\nna\u00efve\nend ", "# title", "three"]
    names = [str(tmp_path / "c.MD"), str(tmp_path / "a.jsonl")]
    assert load_texts(names) == ["# title", "one", "two\n"]


@given(texts=st.lists(st.text()))
def test_the_fingerprint_is_the_hash_of_the_list(texts: list[str]) -> None:
    assert documents_hash(iter(texts)) == content_hash(texts)


def test_compressed_files_are_read_like_plain_ones(tmp_path: Path) -> None:
    rows = "\ufeff" + "".join(json.dumps({"text": f"número {number}"}) + "\r\n" for number in range(5000))
    content = rows.encode()
    (tmp_path / "a.jsonl").write_bytes(content)
    half = len(content) // 2
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(content[:half]) + gzip.compress(content[half:]))
    (tmp_path / "c.JSONL.ZST").write_bytes(pa.compress(content, codec="zstd", asbytes=True))
    (tmp_path / "d.txt.gz").write_bytes(gzip.compress(b"one\r\ntext"))
    plain, gz, zst = (documents_of(str(tmp_path / name)) for name in ("a.jsonl", "b.jsonl.gz", "c.JSONL.ZST"))
    assert plain == gz == zst == [f"número {number}" for number in range(5000)]
    assert documents_of(str(tmp_path / "d.txt.gz")) == ["one\ntext"]


def test_the_column_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "no", "body": "yes"}\n')
    pq.write_table(pa.table({"text": ["no"], "body": ["yes, too"]}), tmp_path / "b.parquet")
    assert list(read_documents(TextConfig(name=str(tmp_path), column="body"))) == ["yes", "yes, too"]
    with pytest.raises(UserError, match=r"Expected it in 'title', got {'body': 'yes', 'text': 'no'}"):
        list(read_documents(TextConfig(name=str(tmp_path), column="title")))
    with pytest.raises(
        UserError,
        match=r"b\.parquet, row 1 has no text. Expected it in 'title', got .*'body'.* another column: distill.texts=",
    ):
        list(read_documents(TextConfig(name=str(tmp_path / "b.parquet"), column="title")))


def test_a_long_text_is_cut_at_ends_of_lines_and_nothing_is_lost(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(text_files, "PIECE", 1000)
    text = "".join(f"line {number} with words\r\n" for number in range(300))
    (tmp_path / "a.txt").write_bytes(text.encode())
    pieces = documents_of(str(tmp_path / "a.txt"))
    assert "".join(pieces) == text.replace("\r\n", "\n")
    assert len(pieces) > 5 and all(piece.endswith("words\n") and len(piece) < 1030 for piece in pieces)


def test_documents_are_read_as_they_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\nnot JSON\n')
    reading = read_documents(TextConfig(name=str(tmp_path)))
    assert [next(reading), next(reading)] == ["one", "two"]
    with pytest.raises(UserError, match=r"a\.jsonl, line 3: not valid JSON"):
        next(reading)


CHARACTERS = st.characters(exclude_characters="\r", exclude_categories=["Cs"])  # without halves of characters


@given(texts=st.lists(st.text(CHARACTERS).filter(str.strip), min_size=1))
def test_nothing_but_line_ends_is_changed(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    path = tmp_path_factory.mktemp("texts") / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    assert documents_of(str(path)) == texts


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.pdf", b"%PDF", r"a\.pdf.*Expected a file that ends in \.txt, \.md, \.jsonl, \.parquet"),
        ("a.txt", b"\xff\xfe", r"a\.txt' is not UTF-8: invalid start byte"),
        ("a.txt", b" \n", r"holds no text"),
        ("a.jsonl", b'{"text": "x"}\n{"text"\n', r"a\.jsonl, line 2: not valid JSON"),
        ("a.jsonl", b'{"body": "x"}\n', r"a\.jsonl, line 1 has no text.*got .*body"),
        ("a.jsonl", b'["x"]\n', r"a\.jsonl, line 1 has no text"),
        ("a.jsonl", b'{"text": 3}\n', r"a\.jsonl, line 1 has no text"),
        ("a.jsonl", b'{"text": "x"}\n{"text": "cut \\ud83d off"}\n', r"a\.jsonl, line 2 has half a character"),
        ("a.parquet", b"PAR1", r"a\.parquet' cannot be read as parquet"),
        ("a.jsonl.gz", b"PAR1", r"a\.jsonl\.gz' cannot be read as jsonl: zlib"),
        ("a.jsonl.zst", pa.compress(b"{}", codec="zstd", asbytes=True)[:-1], r"cannot be read as jsonl: Trunc"),
        ("a.parquet.gz", b"PAR1", r"Expected a file that ends in"),
    ],
)
def test_unreadable_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    for source in (tmp_path / name, tmp_path):
        with pytest.raises(UserError, match=message):
            documents_of(str(source))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"body": ["x"]}, r"row 1 has no text. Expected it in 'text' or 'context', got {'body': 'x'}"),
        ({"text": [1]}, "row 1 has no text. .*got {'text': 1}"),
    ],
)
def test_unreadable_tables(tmp_path: Path, table: dict, message: str) -> None:
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=message):
        documents_of(str(tmp_path / "a.parquet"))


def test_a_missing_path_names_the_built_in_texts(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        documents_of(str(tmp_path / "essay"))
    assert all(name in str(error.value) for name in BUILTIN_TEXTS)


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no files"):
        documents_of(str(tmp_path))

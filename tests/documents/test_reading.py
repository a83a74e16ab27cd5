"""Documents from files: every format, every name, and every input that must be refused."""

import builtins
import gzip
import importlib.resources
import io
import json
import os
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from univerb.documents import formats
from univerb.documents import read as files
from univerb.documents.markup import html_text, markdown_text
from univerb.documents.read import read_documents
from univerb.errors import DocumentError, MissingExtra

Write = Callable[[str, str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_below(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_below


def read_one(path: Path) -> str:
    (document,) = read_documents(path)
    return document.text


def names(*paths: str | os.PathLike[str]) -> list[str]:
    return [document.name for document in read_documents(*paths)]


def pdf_bytes(*pages: str) -> bytes:
    count = len(pages)
    kids = " ".join(f"{4 + 2 * i} 0 R" for i in range(count))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {count} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for i, text in enumerate(pages):
        stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET"
        objects.append(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] "
            f"/Resources << /Font << /F1 3 0 R >> >> /Contents {5 + 2 * i} 0 R >>"
        )
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    out = "%PDF-1.4\n"
    offsets = []
    for number, body in enumerate(objects, start=1):
        offsets.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n"
    start = len(out)
    out += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n"
    out += "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    out += f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n"
    return out.encode("latin-1")


def docx_bytes() -> bytes:
    docx = pytest.importorskip("docx")
    document = docx.Document()
    document.add_heading("A title", level=1)
    document.add_paragraph("First ").add_run("bold").bold = True
    table = document.add_table(rows=1, cols=3)
    for cell, text in zip(table.rows[0].cells, ["left", "same", "same"], strict=True):
        cell.text = text
    document.add_paragraph("Last.")
    buffer = io.BytesIO()
    document.save(buffer)
    return buffer.getvalue()


def docx_with_body(inner: str) -> bytes:
    """Return the DOCX of `docx_bytes` with another body."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(docx_bytes())) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "word/document.xml":
                head = content[: content.index(b"<w:body>")]
                content = head + f"<w:body>{inner}</w:body></w:document>".encode()
            new.writestr(name, content)
    return out.getvalue()


class TestText:
    @pytest.mark.parametrize("name", ["a.txt", "A.TXT", "LICENSE", "notes.rst", ".hidden"])
    def test_known_unknown_and_no_suffix_read_as_text(self, write: Write, name: str) -> None:
        (document,) = read_documents(write(name, "Some text.\n"))
        assert (document.name, document.text) == (name, "Some text.\n")

    def test_a_path_may_be_a_string(self, write: Write) -> None:
        assert names(str(write("a.txt", "x"))) == ["a.txt"]

    @pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
    def test_unicode_encodings_are_recognised(self, write: Write, encoding: str) -> None:
        assert read_one(write("a.txt", "Größe – 東京 😀".encode(encoding))) == "Größe – 東京 😀"

    @pytest.mark.parametrize("bom, encoding", [(b"\xff\xfe", "le"), (b"\xfe\xff", "be")])
    def test_utf16_reads_in_both_byte_orders(self, write: Write, bom: bytes, encoding: str) -> None:
        assert read_one(write("a.txt", bom + "Größe".encode(f"utf-16-{encoding}"))) == "Größe"

    def test_line_ends_become_newlines(self, write: Write) -> None:
        assert read_one(write("a.txt", b"a\r\nb\rc\nd")) == "a\nb\nc\nd"

    @pytest.mark.parametrize(
        "content",
        [
            b"secret\x00secret",
            b"secret \xff\xfa",
            "secret Größe".encode("latin-1"),
            b"\xff\xfes",
            "secret".encode("utf-32"),
            "secret".encode("utf-16-le"),
            b"\x89PNG\r\n\x1a\n\x00secret",
        ],
    )
    def test_binary_is_refused_without_showing_it(self, write: Write, content: bytes) -> None:
        path = write("a.txt", content)
        with pytest.raises(DocumentError, match="binary or not UTF-8.*convert it or leave") as info:
            read_documents(path)
        assert repr(str(path)) in str(info.value)
        assert "secret" not in str(info.value)

    @pytest.mark.parametrize("content", [b"", b" \n\t\n", b"\xef\xbb\xbf", b"\xff\xfe"])
    def test_an_empty_file_is_refused(self, write: Write, content: bytes) -> None:
        with pytest.raises(DocumentError, match=r"a\.txt' is empty"):
            read_documents(write("a.txt", content))

    @settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
    @given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
    @example(text="\ufeffa\r\r\nb\u2028c\x85")
    def test_any_text_reads_back(self, tmp_path: Path, text: str) -> None:
        # A first U+FEFF is a byte order mark, not text.
        kept = text.removeprefix("\ufeff")
        assume(kept.strip())
        path = tmp_path / "any.txt"
        path.write_bytes(text.encode())
        assert read_one(path) == kept.replace("\r\n", "\n").replace("\r", "\n")


class TestMarkdown:
    @pytest.mark.parametrize("suffix", [".md", ".markdown"])
    def test_files_lose_their_markup(self, write: Write, suffix: str) -> None:
        assert read_one(write(f"a{suffix}", "# A *b*\r\n\r\nText.")) == "A b\n\nText."

    @pytest.mark.parametrize(
        "source, text",
        [
            ("# One\nText\n\nTwo\n---\nMore", "One\n\nText\n\nTwo\n\nMore"),
            ("- a\n- b\n  - c\n\n1. d", "a\n\nb\n\nc\n\nd"),
            ("| a | b |\n|---|---|\n| c | *d* |", "a\n\nb\n\nc\n\nd"),
            ("before\n```python\ncode\n```\nafter\n\n    code", "before\n\nafter"),
            ("see [the *link*](http://x.y 'title') now", "see the link now"),
            ("see [ref] now\n\n[ref]: http://x.y", "see ref now"),
            ("an ![alternative](i.png) image", "an image"),
            ("![alternative](i.png)\n\ntext", "text"),
            ("one\ntwo", "one two"),
            ("one  \ntwo<br>three", "one\ntwo\nthree"),
            ("use `code` ~~and~~ **this**", "use code and this"),
            ("R&amp;D \\*not em\\* &lt;", "R&D *not em* <"),
            ("a <b>bold</b> word <!-- hidden -->", "a bold word"),
            ("<div>\nhtml <b>too</b>\n<script>x</script></div>\n\ntext", "html too\n\ntext"),
            ("> quoted\n> text", "quoted text"),
            ("a\n\n***\n\nb", "a\n\nb"),
        ],
    )
    def test_only_what_is_shown_remains(self, source: str, text: str) -> None:
        assert markdown_text(source) == text

    def test_a_file_of_nothing_but_code_is_refused(self, write: Write) -> None:
        with pytest.raises(DocumentError, match="has no text"):
            read_documents(write("a.md", "```\ncode\n```\n"))


class TestHtml:
    @pytest.mark.parametrize("suffix", [".html", ".htm", ".HTML"])
    def test_files_lose_their_markup(self, write: Write, suffix: str) -> None:
        assert read_one(write(f"a{suffix}", "<p>A <b>b</b>\r\nc<p>d")) == "A b c\n\nd"

    @pytest.mark.parametrize(
        "source, text",
        [
            ("<p>a<script>if (x < 1) '<p>'</script><style>p {}</style>b</p>", "ab"),
            ("<template><p>no</p><template>no</template>no</template>yes", "yes"),
            (
                "<html><head><meta charset=latin-1><title>T &amp; U</title></head><body>é €",
                "T & U\n\né €",
            ),
            (
                "<head><title>T</title>text ends the head<body> of a page",
                "T\n\ntext ends the head of a page",
            ),
            ("<head><title>T</title><style>no</style>", "T"),
            ("<head><title>T</title><noscript>no</noscript><body>yes", "T\n\nyes"),
            ("<head><title>T</title><p>yes", "T\n\nyes"),
            ("<header>yes</header>", "yes"),
            ("<h1>a</h1><div>b<div>c</div>d</div>", "a\n\nb\n\nc\n\nd"),
            ("<ul><li>a<li>b</ul><table><tr><td>c<th>d</table>", "a\n\nb\n\nc\n\nd"),
            ("a  \n\t <i> b</i>&nbsp; c", "a b c"),
            ("in<b>line</b> t<i>ag</i>s", "inline tags"),
            ("&lt;p&gt; &eacute; &#8364; &#x1F600;", "<p> é € 😀"),
            ("a<br>b<br/>c", "a\nb\nc"),
            ("<pre>a\n  b\n\nc</pre>d\ne", "a\nb\n\nc\n\nd e"),
            ("a<!-- no -->b<!DOCTYPE html>", "ab"),
            ("a<![if !IE]>b<![ odd ]>c<![CDATA[no]]>d", "abcd"),
            ("<img alt='no'>a</p></div></nonsense>b", "a\n\nb"),
            ("<script>never closed", ""),
        ],
    )
    def test_only_what_is_shown_remains(self, source: str, text: str) -> None:
        assert html_text(source) == text

    @settings(deadline=None)
    @given(
        st.lists(
            st.sampled_from(
                [
                    "<",
                    ">",
                    "!",
                    "[",
                    "]",
                    "/",
                    "-",
                    "p",
                    "head",
                    "title",
                    "script",
                    "&#0;",
                    " ",
                    '"',
                ]
            )
        )
    )
    @example(["<", "!", "["])
    def test_no_markup_breaks_it(self, pieces: list[str]) -> None:
        source = "".join(pieces)
        assert "\0" not in html_text(source) + markdown_text(source)

    def test_a_page_without_text_is_refused(self, write: Write) -> None:
        with pytest.raises(DocumentError, match="has no text"):
            read_documents(write("a.html", "<html><script>x</script><img></html>"))


class TestJsonLines:
    @pytest.mark.parametrize("suffix", [".jsonl", ".ndjson"])
    def test_each_line_is_a_document(self, write: Write, suffix: str) -> None:
        path = write(f"a{suffix}", '{"text": "one", "id": "x"}\r\n\n{"text": "two", "id": 7}\n')
        documents = read_documents(path)
        assert [d.name for d in documents] == [f"a{suffix}#x", f"a{suffix}#7"]
        assert [d.text for d in documents] == ["one", "two"]

    @pytest.mark.parametrize(
        "fields, name",
        [
            ({"name": "n", "id": "i", "title": "t", "celex": "c"}, "n"),
            ({"id": "i", "title": "t", "celex": "c"}, "i"),
            ({"title": "t", "celex": "c"}, "t"),
            ({"celex": "32016R0679"}, "32016R0679"),
            ({"name": " ", "id": None, "title": "two\n words"}, "two words"),
            ({"id": 0}, "0"),
            ({"other": 1}, "1"),
        ],
    )
    def test_the_first_label_names_it_or_else_the_line(
        self, write: Write, fields: dict[str, object], name: str
    ) -> None:
        assert names(write("a.jsonl", json.dumps({"text": "x"} | fields))) == [f"a.jsonl#{name}"]

    def test_equal_labels_are_numbered(self, write: Write) -> None:
        path = write("a.jsonl", '{"text": "x", "id": "i"}\n' * 3)
        assert names(path) == ["a.jsonl#i", "a.jsonl#i#2", "a.jsonl#i#3"]

    def test_separators_that_json_allows_do_not_cut_a_line(self, write: Write) -> None:
        assert read_one(write("a.jsonl", '{"text": "a\u2028b\x85c"}')) == "a\u2028b\x85c"

    def test_escapes_that_are_no_text_are_repaired(self, write: Write) -> None:
        path = write("a.jsonl", r'{"text": "a\r\nb\u0000 \ud800 \ud83d\ude00", "id": "\udfff"}')
        (document,) = read_documents(path)
        assert (document.text, document.name) == ("a\nb \ufffd 😀", "a.jsonl#\ufffd")

    @pytest.mark.parametrize("line", ['{"text": ', "plain", "[" * 100_000, "9" * 5000 + "x"])
    def test_bad_json_is_refused_with_its_line(self, write: Write, line: str) -> None:
        path = write("a.jsonl", f'{{"text": "x"}}\n\n{line}\n')
        with pytest.raises(DocumentError, match=r"line 3 of .*a\.jsonl' is not valid JSON") as info:
            read_documents(path)
        assert info.value.__cause__ is not None

    @pytest.mark.parametrize("line", ["[1]", '"text"', "1", "null"])
    def test_a_line_must_be_an_object(self, write: Write, line: str) -> None:
        with pytest.raises(DocumentError, match="line 1 of .* is a JSON .*an object with 'text'"):
            read_documents(write("a.jsonl", line))

    def test_a_missing_text_lists_the_keys_found(self, write: Write) -> None:
        path = write("a.jsonl", '{"body": "x", "id": 1}')
        with pytest.raises(DocumentError, match="line 1 of .* no 'text'; .*: 'body', 'id'"):
            read_documents(path)

    def test_a_missing_text_of_an_empty_object_says_none(self, write: Write) -> None:
        with pytest.raises(DocumentError, match="keys are: none"):
            read_documents(write("a.jsonl", "{}"))

    @pytest.mark.parametrize("text", ["1", "null", '" "', '["a"]'])
    def test_a_text_must_be_a_string_with_text(self, write: Write, text: str) -> None:
        with pytest.raises(DocumentError, match="line 1 of .*'text' that is empty or no string"):
            read_documents(write("a.jsonl", f'{{"text": {text}}}'))

    def test_a_file_of_blank_lines_is_refused(self, write: Write) -> None:
        with pytest.raises(DocumentError, match="is empty"):
            read_documents(write("a.jsonl", "\n\n"))


class TestGzip:
    @pytest.mark.parametrize(
        "name, content, text",
        [
            ("a.txt.gz", b"plain", "plain"),
            ("a.gz", b"plain", "plain"),
            ("A.TXT.GZ", b"plain", "plain"),
            ("a.md.gz", b"# head", "head"),
            ("a.html.gz", b"<p>page", "page"),
            ("a.jsonl.gz", b'{"text": "line"}', "line"),
            ("a.pdf.gz", pdf_bytes("page"), "page"),
        ],
    )
    def test_what_is_inside_is_read(
        self, write: Write, name: str, content: bytes, text: str
    ) -> None:
        (document,) = read_documents(write(name, gzip.compress(content)))
        assert document.text == text
        assert document.name.startswith(name)

    @pytest.mark.parametrize(
        "content",
        [
            b"not gzip",
            gzip.compress(b"text" * 100)[:-12],
            gzip.compress(b"text")[:-8] + b"12345678",
            gzip.compress(b"text")[:10] + b"\xff" * 20,
        ],
        ids=["no header", "cut off", "wrong sum", "no stream"],
    )
    def test_broken_gzip_is_refused(self, write: Write, content: bytes) -> None:
        with pytest.raises(DocumentError, match=r"a\.txt\.gz' is not a readable gzip") as info:
            read_documents(write("a.txt.gz", content))
        assert info.value.__cause__ is not None

    def test_an_empty_file_inside_is_refused(self, write: Write) -> None:
        with pytest.raises(DocumentError, match="is empty"):
            read_documents(write("a.txt.gz", gzip.compress(b"")))

    def test_an_archive_is_binary(self, write: Write) -> None:
        with pytest.raises(DocumentError, match="binary"):
            read_documents(write("a.tar.gz", gzip.compress(b"name\0\0\0")))


class TestSize:
    @pytest.fixture(autouse=True)
    def small_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for suffix, form in formats.FORMATS.items():
            monkeypatch.setitem(formats.FORMATS, suffix, form._replace(max_bytes=2**20))
        monkeypatch.setattr(files, "TEXT", formats.FORMATS[".txt"])

    def test_a_file_at_the_limit_is_read(self, write: Write) -> None:
        assert len(read_one(write("a.txt", b"x" * 2**20))) == 2**20

    def test_a_file_over_the_limit_is_refused(self, write: Write) -> None:
        with pytest.raises(DocumentError, match=r"a\.txt' holds more than 1 MiB\. Split it"):
            read_documents(write("a.txt", b"x" * (2**20 + 1)))

    def test_a_gzip_bomb_is_refused(self, write: Write) -> None:
        bomb = gzip.compress(b"x" * 2**24)
        assert len(bomb) < 2**20
        with pytest.raises(DocumentError, match="more than 1 MiB"):
            read_documents(write("a.txt.gz", bomb))

    def test_stdin_over_the_limit_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x" * (2**20 + 1))))
        with pytest.raises(DocumentError, match="standard input holds more than"):
            read_documents("-")


class TestPdf:
    @pytest.fixture(autouse=True)
    def needs_pypdf(self) -> None:
        pytest.importorskip("pypdf")

    def test_pages_are_separated_by_a_blank_line(self, write: Write) -> None:
        path = write("a.pdf", pdf_bytes("First page.", "Second page."))
        assert read_one(path) == "First page.\n\nSecond page."

    def test_pages_without_text_leave_no_gap(self, write: Write) -> None:
        assert read_one(write("a.pdf", pdf_bytes("one", "", "three"))) == "one\n\nthree"

    def test_a_scan_is_refused(self, write: Write) -> None:
        with pytest.raises(DocumentError, match="has no text .a scan needs text recognition"):
            read_documents(write("a.pdf", pdf_bytes("")))

    @pytest.mark.parametrize("content", [b"no pdf", b"%PDF-1.4\n", pdf_bytes("text")[:200]])
    def test_a_broken_pdf_is_refused(self, write: Write, content: bytes) -> None:
        with pytest.raises(DocumentError, match=r"a\.pdf' is not a readable PDF file") as info:
            read_documents(write("a.pdf", content))
        assert info.value.__cause__ is not None

    def test_a_protected_pdf_is_refused(self, write: Write) -> None:
        import pypdf

        writer = pypdf.PdfWriter(io.BytesIO(pdf_bytes("text")))
        writer.encrypt("password", algorithm="RC4-128")
        protected = io.BytesIO()
        writer.write(protected)
        with pytest.raises(DocumentError, match="need a password"):
            read_documents(write("a.pdf", protected.getvalue()))

    def test_an_empty_file_is_refused_as_empty(self, write: Write) -> None:
        with pytest.raises(DocumentError, match="is empty"):
            read_documents(write("a.pdf", b""))


class TestDocx:
    @pytest.fixture(autouse=True)
    def needs_docx(self) -> None:
        pytest.importorskip("docx")

    def test_paragraphs_and_table_cells_come_in_order(self, write: Write) -> None:
        text = read_one(write("a.docx", docx_bytes()))
        assert text == "A title\n\nFirst bold\n\nleft\n\nsame\n\nsame\n\nLast."

    @pytest.mark.parametrize(
        "inner, text",
        [
            ("<w:p><w:ins><w:r><w:t>added</w:t></w:r></w:ins></w:p>", "added"),
            (
                "<w:p><w:r><w:t>kept</w:t></w:r><w:del><w:r><w:delText>gone</w:delText></w:r>"
                "</w:del></w:p>",
                "kept",
            ),
            (
                "<w:p><w:sdt><w:sdtContent><w:r><w:t>field</w:t></w:r></w:sdtContent></w:sdt></w:p>",
                "field",
            ),
            (
                "<w:p><w:moveFrom><w:r><w:t>moved</w:t></w:r></w:moveFrom></w:p>"
                "<w:p><w:moveTo><w:r><w:t>moved</w:t></w:r></w:moveTo></w:p>",
                "moved",
            ),
            ("<w:p><w:hyperlink><w:r><w:t>link</w:t></w:r></w:hyperlink></w:p>", "link"),
            ("<w:p><w:r><w:t>a</w:t><w:br/><w:t>b</w:t></w:r></w:p>", "a\nb"),
            (
                "<w:p><w:r><w:t>a</w:t><x:A xmlns:x='x'><x:Choice><w:p><w:r><w:t>box</w:t></w:r>"
                "</w:p></x:Choice><x:Fallback><w:p><w:r><w:t>box</w:t></w:r></w:p></x:Fallback>"
                "</x:A></w:r><w:r><w:t>b</w:t></w:r></w:p>",
                "ab\n\nbox",
            ),
        ],
    )
    def test_what_word_shows_is_read_once(self, write: Write, inner: str, text: str) -> None:
        assert read_one(write("a.docx", docx_with_body(inner))) == text

    def test_a_document_without_text_is_refused(self, write: Write) -> None:
        with pytest.raises(DocumentError, match="has no text"):
            read_documents(write("a.docx", docx_with_body("<w:p/>")))

    @pytest.mark.parametrize("part", ["no zip", "half", "other zip"])
    def test_a_broken_docx_is_refused(self, write: Write, part: str) -> None:
        other = io.BytesIO()
        with zipfile.ZipFile(other, "w") as archive:
            archive.writestr("a.txt", "text")
        whole = docx_bytes()
        content = {
            "no zip": b"no zip",
            "half": whole[: len(whole) // 2],
            "other zip": other.getvalue(),
        }[part]
        with pytest.raises(DocumentError, match=r"a\.docx' is not a readable DOCX file") as info:
            read_documents(write("a.docx", content))
        assert info.value.__cause__ is not None


def test_a_missing_extra_says_how_to_install_it(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pypdf", None)
    with pytest.raises(MissingExtra, match=r"'pypdf' is not .*univerb\[files\]"):
        read_documents(write("a.pdf", b"content"))


class TestFolders:
    def test_files_come_sorted_and_named_by_their_path_below_it(
        self, write: Write, tmp_path: Path
    ) -> None:
        for name in ["b.txt", "a/z.md", "a/b/c.html", "README.md", "c.txt.gz", "d.jsonl"]:
            content = '{"text": "x", "id": "i"}'
            write(name, gzip.compress(b"x") if name.endswith(".gz") else content)
        assert names(tmp_path) == [
            "README.md",
            "a/b/c.html",
            "a/z.md",
            "b.txt",
            "c.txt.gz",
            "d.jsonl#i",
        ]

    def test_hidden_and_unknown_files_are_skipped(self, write: Write, tmp_path: Path) -> None:
        for name in ["a.txt", ".b.txt", ".git/c.txt", "d/.e/f.txt", "g.py", "LICENSE", "h.tar.gz"]:
            write(name, "x")
        assert names(tmp_path) == ["a.txt"]

    def test_a_hidden_folder_that_is_named_is_read(self, write: Write) -> None:
        assert names(write(".notes/a.txt", "x").parent) == ["a.txt"]

    def test_what_only_looks_like_a_file_is_skipped(self, write: Write, tmp_path: Path) -> None:
        write("a.txt", "x")
        write("b.txt/c.txt", "x")
        (tmp_path / "dangling.txt").symlink_to(tmp_path / "nowhere")
        (tmp_path / "loop").symlink_to(tmp_path)
        assert names(tmp_path) == ["a.txt", "b.txt/c.txt"]

    @pytest.mark.parametrize("content", [{}, {"a.py": "x"}, {".a.txt": "x", "b/.c.txt": "x"}])
    def test_a_folder_without_documents_is_refused(
        self, write: Write, tmp_path: Path, content: dict[str, str]
    ) -> None:
        for name, text in content.items():
            write(name, text)
        with pytest.raises(DocumentError, match=r"has no files.*\.docx, \.htm, .*\.txt") as info:
            read_documents(tmp_path)
        assert repr(str(tmp_path)) in str(info.value)

    def test_a_bad_file_in_a_folder_is_named_in_full(self, write: Write, tmp_path: Path) -> None:
        write("a.txt", "x")
        bad = write("b/c.txt", b"\0")
        with pytest.raises(DocumentError, match="binary") as info:
            read_documents(tmp_path)
        assert repr(str(bad)) in str(info.value)

    def test_the_working_folder_is_read(
        self, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write("a/b.txt", "x")
        monkeypatch.chdir(tmp_path)
        assert names(".") == ["a/b.txt"]
        monkeypatch.chdir(tmp_path / "a")
        assert names("..") == ["a/b.txt"]

    def test_the_demo_corpus_is_read(self) -> None:
        demo = importlib.resources.files("univerb") / "assets" / "demo"
        with importlib.resources.as_file(demo) as folder:
            documents = {document.name: document.text for document in read_documents(folder)}
        assert {"lease.txt", "ship.md", "observatory.html", "faq.jsonl#faq-01"} <= set(documents)
        assert documents["ship.md"].startswith("The Steamship Northern Lapwing\n\nThe Northern L")
        assert "font-family" not in documents["observatory.html"]
        assert all(text == text.strip("\r\0") and text.strip() for text in documents.values())


class TestNames:
    def test_equal_names_get_the_folders_that_tell_them_apart(self, write: Write) -> None:
        paths = [write(name, "x") for name in ["p/x/a.txt", "q/x/a.txt", "q/y/a.txt", "q/y/b.txt"]]
        assert names(*paths) == ["p/x/a.txt", "q/x/a.txt", "y/a.txt", "b.txt"]

    def test_equal_names_below_folders_get_the_folders(self, write: Write, tmp_path: Path) -> None:
        for name in ["p/s/a.txt", "q/s/a.txt", "q/b.txt"]:
            write(name, "x")
        assert names(tmp_path / "p", tmp_path / "q") == ["p/s/a.txt", "b.txt", "q/s/a.txt"]

    def test_a_longer_name_may_clash_again(self, write: Write, tmp_path: Path) -> None:
        for name in ["r/x/a.txt", "p/x/a.txt", "y/a.txt"]:
            write(name, "x")
        given = names(tmp_path / "r", tmp_path / "p/x/a.txt", tmp_path / "y/a.txt")
        assert given == ["r/x/a.txt", "p/x/a.txt", "y/a.txt"]

    def test_a_file_given_twice_is_numbered(self, write: Write) -> None:
        path = write("d/a.txt", "x")
        assert names(path, path.parent, path) == ["a.txt", "a.txt#2", "a.txt#3"]

    def test_a_number_that_is_taken_is_left_out(self, write: Write) -> None:
        a, taken = write("a", "x"), write("a#2", "y")
        assert names(taken, a, a) == ["a#2", "a", "a#3"]

    def test_equal_names_of_files_tell_their_lines_apart(self, write: Write) -> None:
        paths = [write(f"{d}/a.jsonl", '{"text": "x", "id": "i"}') for d in "pq"]
        assert names(*paths) == ["p/a.jsonl#i", "q/a.jsonl#i"]

    def test_documents_keep_the_order_given(self, write: Write) -> None:
        assert names(write("b.txt", "x"), write("a.txt", "x")) == ["b.txt", "a.txt"]

    @pytest.mark.skipif(sys.platform != "linux", reason="needs file names that are any bytes")
    def test_a_name_that_is_not_unicode_is_repaired(self, tmp_path: Path) -> None:
        path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.txt")
        Path(path).write_text("x")
        assert names(path) == ["\ufffd.txt"]


class TestStdin:
    def feed(self, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="ascii"))

    def test_a_dash_reads_text_from_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.feed(monkeypatch, "Größe\r\n".encode())
        (document,) = read_documents("-")
        assert (document.name, document.text) == ("stdin", "Größe\n")

    def test_it_may_be_one_of_several(self, monkeypatch: pytest.MonkeyPatch, write: Write) -> None:
        self.feed(monkeypatch, b"text")
        path = write("d/stdin", "x")
        assert names(path, "-") == ["d/stdin", "stdin"]

    @pytest.mark.parametrize("content, problem", [(b"", "is empty"), (b"\0", "is binary")])
    def test_bad_input_is_refused(
        self, monkeypatch: pytest.MonkeyPatch, content: bytes, problem: str
    ) -> None:
        self.feed(monkeypatch, content)
        with pytest.raises(DocumentError, match=f"^standard input {problem}"):
            read_documents("-")


class TestPaths:
    def test_no_path_is_refused(self) -> None:
        with pytest.raises(DocumentError, match="no path was given"):
            read_documents()

    @pytest.mark.parametrize("name", ["nowhere.txt", "no/where.txt", "a\0b"])
    def test_a_missing_path_is_named(self, tmp_path: Path, name: str) -> None:
        path = str(tmp_path / name)
        with pytest.raises(DocumentError) as info:
            read_documents(path)
        assert str(info.value) == f"{path!r} does not exist. Check the path."

    def test_the_empty_path_is_not_the_working_folder(self) -> None:
        with pytest.raises(DocumentError, match="'' does not exist"):
            read_documents("")

    def test_a_path_below_a_file_is_missing(self, write: Write) -> None:
        with pytest.raises(DocumentError, match="does not exist"):
            read_documents(write("a.txt", "x") / "b.txt")

    def test_a_close_name_is_suggested(self, write: Write, tmp_path: Path) -> None:
        right = write("lease.txt", "x")
        with pytest.raises(DocumentError, match=r"leese\.txt' does not exist\. Did you") as info:
            read_documents(tmp_path / "leese.txt")
        assert str(info.value).endswith(f"Did you mean {str(right)!r}?")

    def test_a_name_that_is_too_long_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(DocumentError, match="cannot be read"):
            read_documents(tmp_path / ("x" * 5000))

    @pytest.mark.parametrize("error", [PermissionError, IsADirectoryError, OSError])
    def test_a_file_that_cannot_be_opened_is_refused(
        self, write: Write, monkeypatch: pytest.MonkeyPatch, error: type[OSError]
    ) -> None:
        def refuse(*_: object) -> None:
            raise error(13, "reason")

        path = write("a.txt", "x")
        monkeypatch.setattr(builtins, "open", refuse)
        with pytest.raises(DocumentError, match=r"a\.txt' cannot be read: reason\.") as info:
            read_documents(path)
        assert isinstance(info.value.__cause__, error)

    def test_a_folder_that_cannot_be_listed_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(path: object) -> None:
            raise PermissionError(13, "reason", str(path))

        monkeypatch.setattr(os, "scandir", refuse)
        with pytest.raises(DocumentError, match="cannot be read: reason") as info:
            read_documents(tmp_path)
        assert repr(str(tmp_path)) in str(info.value)

    @pytest.mark.skipif(
        not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything"
    )
    def test_a_file_without_permission_is_refused(self, write: Write) -> None:
        path = write("a.txt", "x")
        path.chmod(0)
        with pytest.raises(DocumentError, match="cannot be read"):
            read_documents(path)

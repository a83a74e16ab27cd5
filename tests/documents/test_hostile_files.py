"""Files made to hang a reader or to fill its memory: small ones that become large, and no files."""

import gzip
import io
import json
import os
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from univerb.documents import docx, formats
from univerb.documents import read as files
from univerb.documents.markup import html_text, markdown_text
from univerb.documents.read import iter_documents, read_documents
from univerb.errors import DocumentError

# Ends what hangs; what is read in linear time takes a second or two.
pytestmark = pytest.mark.timeout(300)

RELATIONSHIPS = (
    '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">'
    '<Relationship Id="a" Target="/word/document.xml" Type="http://schemas.openxmlformats.org/'
    'officeDocument/2006/relationships/officeDocument"/></Relationships>'
)
NAMESPACE = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
BOMB = '<!DOCTYPE d [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;">]>'


def docx_bytes(body: str, before: str = "") -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("_rels/.rels", RELATIONSHIPS)
        xml = f'{before}<w:document xmlns:w="{NAMESPACE}"><w:body>{body}</w:body></w:document>'
        archive.writestr("word/document.xml", xml)
    return packed.getvalue()


def paragraph(text: str) -> str:
    return f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>"


def refusal(path: Path) -> str:
    with pytest.raises(DocumentError) as caught:
        read_documents(path)
    assert repr(str(path)) in str(caught.value)
    return str(caught.value)


def peak_megabytes(path: Path) -> tuple[float, str]:
    """Return by how much the memory of a process grows that reads a file, and what it prints."""
    code = (
        "import resource, sys; import lxml.etree, markdown_it\n"
        "from univerb.documents.read import read_documents\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = peak()\n"
        "print(len(read_documents(sys.argv[1])[0].text), file=sys.stderr)\n"
        "print(peak() - before)\n"
    )
    run = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return int(run.stdout) / unit, run.stderr.strip()


class TestMarkup:
    def test_tags_that_are_text_stay_as_they_are(self):
        source = "<title>x</p>y</title><p>z<textarea>a</P >b</p><p></textarea>"
        assert html_text(source) == "x</p>y\n\nz\n\na</P >b</p><p>"

    @pytest.mark.parametrize(
        "piece", ["<a x", "<a x='", "<!--", "<![", "<?", "</", "&#", "</i>", "<b></b>", "<script>"]
    )
    def test_no_markup_takes_more_than_linear_time(self, piece):
        assert html_text("text " + piece * (800_000 // len(piece))).startswith("text")

    @pytest.mark.parametrize("piece", ["[", "![", "*a ", "> ", "- ", "`", "<a x", "[a](", "|a"])
    def test_no_markdown_takes_more_than_linear_time(self, piece):
        assert markdown_text("text " + piece * (80_000 // len(piece))).startswith("text")

    def test_distinct_names_of_elements_cost_no_more_than_equal_ones(self):
        assert html_text("".join(f"<x{i}>a</x{i}>" for i in range(50_000))) == "a" * 50_000

    @pytest.mark.parametrize("name", ["a.html", "a.md"])
    def test_elements_that_are_nested_too_deep_are_refused(self, tmp_path, name):
        path = tmp_path / name
        path.write_text("<div>" * 100_000 + "text")
        assert "nested more than 5000 deep" in refusal(path)

    def test_a_page_that_closes_none_of_its_anchors_is_read(self):
        assert html_text("<a name=x>title<p>text" * 2000).startswith("title\n\ntexttitle")

    @pytest.mark.parametrize(("name", "mebibytes"), [("a.md", 4), ("a.html", 32)])
    def test_what_is_converted_as_a_whole_has_a_lower_limit(self, tmp_path, name, mebibytes):
        path = tmp_path / f"{name}.gz"
        path.write_bytes(gzip.compress(b"a " * (mebibytes * 2**19 + 1)))
        assert f"holds more than {mebibytes} MiB" in refusal(path)


class TestDocx:
    @pytest.mark.skipif(sys.platform == "win32", reason="peak memory is read with getrusage")
    def test_millions_of_elements_take_no_memory(self, tmp_path):
        path = tmp_path / "a.docx"
        path.write_bytes(docx_bytes("<w:p/>" * 2_000_000 + paragraph("text")))
        assert path.stat().st_size < 200_000
        # A tree of them has 250 MB.
        grown, length = peak_megabytes(path)
        assert length == "4" and grown < 100

    def test_a_document_that_unpacks_to_too_much_is_refused(self, tmp_path, monkeypatch):
        monkeypatch.setattr(docx, "_MAX_XML", 2**20)
        path = tmp_path / "a.docx"
        path.write_bytes(docx_bytes(paragraph("text") + " " * 2**20))
        assert "unpacks to more than 1 MiB" in refusal(path)

    def test_pictures_do_not_count(self, tmp_path, monkeypatch):
        monkeypatch.setattr(docx, "_MAX_XML", 2**20)
        path = tmp_path / "a.docx"
        path.write_bytes(docx_bytes(paragraph("text")))
        with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("word/media/image1.png", b"\0" * 2**21)
        assert read_documents(path)[0].text == "text"

    def test_elements_that_are_nested_too_deep_are_refused(self, tmp_path):
        path = tmp_path / "a.docx"
        path.write_bytes(docx_bytes("<w:x>" * 2000 + "</w:x>" * 2000))
        assert "nested more than 1000 deep" in refusal(path)

    def test_a_paragraph_of_many_runs_takes_linear_time(self, tmp_path):
        path = tmp_path / "a.docx"
        run = f"<w:r><w:t>{'a' * 500}</w:t></w:r>"
        path.write_bytes(docx_bytes(f"<w:p>{run * 100_000}</w:p>"))
        assert len(read_documents(path)[0].text) == 50_000_000

    def test_entities_are_refused(self, tmp_path):
        path = tmp_path / "a.docx"
        path.write_bytes(docx_bytes(paragraph("&b;"), BOMB))
        assert "not a readable DOCX" in refusal(path)

    def test_breaks_of_pages_are_no_lines(self, tmp_path):
        path = tmp_path / "a.docx"
        breaks = '<w:br w:type="page"/><w:br/><w:tab/><w:noBreakHyphen/>'
        path.write_bytes(docx_bytes(f"<w:p><w:r><w:t>a</w:t>{breaks}<w:t>b</w:t></w:r></w:p>"))
        assert read_documents(path)[0].text == "a\n\t-b"

    def test_a_tab_stop_is_no_text(self, tmp_path):
        path = tmp_path / "a.docx"
        inner = "<w:p><w:pPr><w:tabs><w:tab/></w:tabs></w:pPr><w:r><w:t>b</w:t></w:r></w:p>"
        path.write_bytes(docx_bytes(f"<w:p><w:r><w:t>a</w:t><w:x>{inner}</w:x></w:r></w:p>"))
        assert read_documents(path)[0].text == "a\n\nb"


class TestPdf:
    def test_pages_that_share_their_text_are_counted_each(self, tmp_path, monkeypatch):
        pypdf = pytest.importorskip("pypdf")
        monkeypatch.setattr(formats, "_MAX_PDF_TEXT", 2**20)
        monkeypatch.setattr(pypdf.PageObject, "extract_text", lambda _: "a" * 2**18)
        writer = pypdf.PdfWriter()
        for _ in range(5):
            writer.add_blank_page(100, 100)
        path = tmp_path / "a.pdf"
        writer.write(path)
        assert "holds more than 1 MiB" in refusal(path)


class TestJsonLines:
    def test_a_line_that_is_too_long_is_refused_with_its_number(self, tmp_path, monkeypatch):
        monkeypatch.setattr(formats, "PART", 1000)
        path = tmp_path / "a.jsonl"
        path.write_text('{"text": "a"}\n{"text": "b", "more": [' + "1," * 500 + "1]}\n")
        assert "line 2 of" in refusal(path) and "more than 1,000 characters" in refusal(path)


class TestLongText:
    @pytest.fixture(autouse=True)
    def short_parts(self, monkeypatch):
        monkeypatch.setattr(formats, "PART", 100)

    @pytest.mark.parametrize("mark", ["\n\n", "\n", " ", "–"])
    @pytest.mark.parametrize("suffix", [".txt", ".tokens", ".txt.gz"])
    def test_it_is_cut_into_numbered_documents_and_nothing_is_lost(self, tmp_path, mark, suffix):
        text = "".join(f"word{i}{mark}" for i in range(200))
        path = tmp_path / f"a{suffix}"
        path.write_bytes(gzip.compress(text.encode()) if suffix.endswith("gz") else text.encode())
        documents = read_documents(path)
        assert "".join(document.text for document in documents) == text
        expected = [f"a{suffix}#{number}" for number in range(1, len(documents) + 1)]
        assert [document.name for document in documents] == expected
        assert max(len(document.text) for document in documents) <= 200
        if mark != "–":
            assert all(document.text.endswith(mark) for document in documents)

    def test_one_that_fits_stays_one_document(self, tmp_path):
        path = tmp_path / "a.txt"
        path.write_text("ä" * 100)
        assert [(d.name, d.text) for d in read_documents(path)] == [("a.txt", "ä" * 100)]

    def test_space_makes_no_document(self, tmp_path):
        path = tmp_path / "a.txt"
        path.write_text("a" * 100 + " " * 1000 + "b")
        assert [d.text.strip() for d in read_documents(path)] == ["a" * 100, "b"]
        path.write_text(" " * 1000)
        assert "is empty" in refusal(path)

    def test_binary_content_far_behind_is_refused(self, tmp_path):
        path = tmp_path / "a.txt"
        path.write_bytes(b"a " * 1000 + b"\0")
        assert "binary" in refusal(path)

    def test_the_largest_text_is_larger_than_the_training_text_of_wikitext_103(self):
        assert formats.TEXT.max_bytes > 541_000_000


class TestIterating:
    def test_documents_come_one_by_one(self, tmp_path):
        path = tmp_path / "a.jsonl"
        path.write_text(json.dumps({"text": "one"}) + "\nno JSON\n")
        documents = iter_documents(path)
        assert next(documents).text == "one"
        with pytest.raises(DocumentError, match="line 2"):
            next(documents)

    def test_it_reads_what_read_documents_reads(self, tmp_path):
        (tmp_path / "b").mkdir()
        for name in ("a.txt", "b/a.txt"):
            (tmp_path / name).write_text(name)
        paths = [tmp_path, tmp_path / "b"]
        assert list(iter_documents(*paths)) == read_documents(*paths)

    def test_a_wrong_path_is_refused_before_the_first_document(self, tmp_path):
        (tmp_path / "a.txt").write_text("text")
        with pytest.raises(DocumentError, match="does not exist"):
            iter_documents(tmp_path / "a.txt", tmp_path / "b.txt")


@pytest.mark.skipif(sys.platform == "win32", reason="needs links, pipes and devices")
class TestWhatIsNoFile:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        folder = tmp_path / "folder"
        folder.mkdir()
        (folder / "a.txt").write_text("inside")
        (tmp_path / "secret.txt").write_text("outside")
        (tmp_path / "others").mkdir()
        (tmp_path / "others" / "b.txt").write_text("outside")
        return folder

    def texts(self, *paths: Path) -> list[str]:
        return [document.text for document in read_documents(*paths)]

    def test_links_that_lead_out_of_a_folder_are_not_followed(self, folder, tmp_path):
        (folder / "b.txt").symlink_to(tmp_path / "secret.txt")
        (folder / "c.txt").symlink_to("../secret.txt")
        (folder / "d").symlink_to(tmp_path / "others")
        (folder / "e.txt").symlink_to("/dev/zero")
        assert self.texts(folder) == ["inside"]

    def test_links_within_a_folder_are(self, folder):
        (folder / "b.txt").symlink_to("a.txt")
        assert self.texts(folder) == ["inside", "inside"]

    def test_a_folder_may_itself_be_a_link_as_may_a_file_that_is_named(self, folder, tmp_path):
        (tmp_path / "link").symlink_to(folder)
        (tmp_path / "link.txt").symlink_to(tmp_path / "secret.txt")
        assert self.texts(tmp_path / "link", tmp_path / "link.txt") == ["inside", "outside"]

    def test_pipes_sockets_and_devices_of_a_folder_are_left_out(self, folder, monkeypatch):
        os.mkfifo(folder / "b.txt")
        monkeypatch.chdir(folder)  # a socket's path must be short
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind("c.txt")
            assert self.texts(folder) == ["inside"]

    @pytest.mark.parametrize("kind", ["pipe", "link to a pipe", "device", "link to a device"])
    def test_one_that_is_named_is_refused_and_not_opened(self, tmp_path, kind, monkeypatch):
        target = tmp_path / "target.txt"
        if "pipe" in kind:
            os.mkfifo(target)
        else:
            target = Path("/dev/zero")
        path = target
        if "link" in kind:
            path = tmp_path / "link.txt"
            path.symlink_to(target)
        monkeypatch.setattr(files, "_opened", None)
        assert "a pipe, a socket or a device" in refusal(path)

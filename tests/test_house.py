"""The rules of the house that no linter knows: sizes, names, and what sources may speak of."""

import ast
import re
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles

import univerb

PACKAGE = Path(univerb.__file__).parent
ROOT = Path(__file__).parents[1]
SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES}
TABLES = {"lab/tables/paper_rows.py", "lab/tables/paper.py"}
"""Files that are data."""


def relative(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def functions(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def lines_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or 0) - node.lineno + 1


def test_files_are_short():
    sizes = {relative(path): path.read_text("utf-8").count("\n") for path in SOURCES}
    assert {name: size for name, size in sizes.items() if size > 400 and name not in TABLES} == {}
    assert median(sizes.values()) <= 150


def test_functions_are_short():
    sizes = [
        (lines_of(node), f"{relative(path)}:{node.name}")
        for path, tree in TREES.items()
        for node in functions(tree)
    ]
    assert [size for size in sizes if size[0] > 60] == []
    assert quantiles([size for size, _ in sizes], n=10)[-1] <= 30


def test_no_class_name_is_used_twice():
    homes = defaultdict(list)
    for path, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(relative(path))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_nothing_cites_a_document_that_is_not_here():
    texts = [*SOURCES, *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    texts += [*(ROOT / "configs").rglob("*.yaml"), *(ROOT / "tests").rglob("*.py")]
    foreign = re.compile(r"\b(METHOD|DESIGN|AUDIT|ENGINEERING|PEERS)\b(?!\.md\b)")
    citing = [path.name for path in texts if foreign.search(path.read_text("utf-8"))]
    assert [name for name in citing if name != Path(__file__).name] == []


def test_documents_that_sources_cite_exist():
    cited = re.compile(r"\b(docs/[\w/-]+\.md)(?:, ([A-Z][^.;)`\"]*?)(?=[.;)`\"]))?")
    for path in SOURCES:
        for document, heading in cited.findall(" ".join(path.read_text("utf-8").split())):
            page = ROOT / document
            assert page.is_file(), f"{relative(path)} cites {document}"
            headings = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), flags=re.MULTILINE)
            assert not heading or heading in headings, f"{relative(path)} cites {heading!r}"


def test_the_core_has_no_words_of_its_own_for_what_the_field_names():
    """Names that were replaced by the field's; none of them comes back."""
    gone = {
        "Continuation", "ActivePhrases", "PhraseRows", "Guesses", "Prefixes", "Rehearsal",
        "Journal", "Observer", "Silence", "Decoding", "Resolved", "Scored", "Goal",
        "is_barred", "is_rough", "propose", "settle", "stamp", "counting", "remember",
        "as_whole", "escape_size", "taught", "Marked", "Desk", "Means",
    }  # fmt: skip
    names = {
        (name, relative(path))
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        for name in [getattr(node, "name", None) or getattr(node, "attr", None)]
        if isinstance(name, str)
    }
    assert {pair for pair in names if pair[0] in gone} == set()


def test_no_stretch_of_code_stands_twice():
    """Six lines or more, the same to the letter, in two places."""
    places = defaultdict(list)
    for path in SOURCES:
        text = path.read_text("utf-8").splitlines()
        code = [
            (number, line.strip())
            for number, line in enumerate(text, 1)
            if len(line.strip()) > 3 and not line.strip().startswith(("#", "import ", "from "))
        ]
        for at in range(len(code) - 5):
            window = code[at : at + 6]
            if all(b[0] - a[0] <= 3 for a, b in pairwise(window)):
                places["\n".join(line for _, line in window)].append((relative(path), window[0][0]))
    assert {stretch: where for stretch, where in places.items() if len(where) > 1} == {}

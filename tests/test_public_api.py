"""What the package promises as a whole: few names, fast imports, nothing unsafe inside."""

import ast
import importlib
import importlib.metadata
import pkgutil
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import univerb

PACKAGE = Path(univerb.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
PUBLIC = [path for path in SOURCES if path.stem == "__init__" or path.stem[0] != "_"]
UNSAFE_MODULES = {
    "pickle",
    "_pickle",
    "cPickle",
    "cloudpickle",
    "dill",
    "joblib",
    "marshal",
    "shelve",
}


def run(code: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=900, check=True
    )
    return result.stdout


def cpu_seconds(code: str, times: int = 3) -> float:
    """Return the CPU time of a Python process that runs the code, the best of some."""

    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    best = float("inf")
    for _ in range(times):
        before = spent()
        run(code)
        best = min(best, spent() - before)
    return best


def type_checked_names() -> dict[str, str]:
    """Return the names that type checkers see in the package, each with its module."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    (block,) = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: node.module for node in imports for alias in node.names}


class TestNames:
    def test_there_are_at_most_twelve(self) -> None:
        assert len(univerb.__all__) == len(set(univerb.__all__)) <= 12

    def test_dir_shows_the_public_names_and_no_more(self) -> None:
        assert sorted(dir(univerb)) == sorted(univerb.__all__)

    def test_type_checkers_see_the_same_names_as_users(self) -> None:
        assert {*type_checked_names(), "__version__"} == set(univerb.__all__)

    @pytest.mark.parametrize("name", univerb.__all__)
    def test_each_can_be_imported_and_explains_itself(self, name: str) -> None:
        value = getattr(univerb, name)
        assert value is getattr(univerb, name)
        if name != "__version__":
            assert value is getattr(importlib.import_module(type_checked_names()[name]), name)
            assert value.__doc__

    def test_an_unknown_name_is_an_attribute_error(self) -> None:
        with pytest.raises(AttributeError, match="'generat'"):
            _ = univerb.generat
        with pytest.raises(ImportError):
            from univerb import generat  # noqa: F401

    def test_the_version_is_that_of_the_installed_package(self) -> None:
        assert univerb.__version__ == importlib.metadata.version("univerb")


class TestSpeed:
    def test_importing_the_package_loads_nothing_heavy(self) -> None:
        heavy = "{'torch', 'transformers', 'numpy', 'tokenizers', 'pydantic'}"
        assert run(f"import sys, univerb\nprint({heavy} & set(sys.modules))") == "set()\n"

    @pytest.mark.parametrize("name", ["read_documents", "Document", "Phrase", "DynamicVocabulary"])
    def test_the_core_needs_no_torch(self, name: str) -> None:
        heavy = "{'torch', 'transformers'}"
        code = f"import sys, univerb\nuniverb.{name}\nprint({heavy} & set(sys.modules))"
        assert run(code) == "set()\n"

    def test_importing_the_package_takes_less_than_a_third_of_a_second(self) -> None:
        assert cpu_seconds("import univerb") < 0.3

    def test_help_takes_less_than_half_a_second(self) -> None:
        (script,) = importlib.metadata.entry_points(group="console_scripts", name="univerb")
        module, function = script.value.split(":")
        code = f"import sys; sys.argv = ['univerb', '--help']\nimport {module} as m; m.{function}()"
        assert "generate" in run(code)
        assert cpu_seconds(code) < 0.5


def unsafe_imports(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            modules = [alias.name for alias in names]
        case ast.ImportFrom(module=str(module), names=names):
            modules = [module, *(f"{module}.{alias.name}" for alias in names)]
        case _:
            return
    for module in modules:
        if module.split(".")[0] in UNSAFE_MODULES or module == "torch.load":
            yield module


def unsafe_calls(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Attribute(value=ast.Name(id="torch"), attr="load"):
            yield "torch.load"
        case ast.Call(func=ast.Name(id="eval" | "exec" | "__import__" as name)):
            yield name
        case ast.keyword(arg="trust_remote_code", value=ast.Constant(value=False)):
            return
        case (
            ast.keyword(arg="trust_remote_code" as name)
            | ast.Constant(value="trust_remote_code" | "resize_token_embeddings" as name)
            | ast.Attribute(attr="resize_token_embeddings" as name)
        ):
            yield name


def unsafe(tree: ast.AST) -> list[str]:
    """Return what a source does and must not do."""
    nodes = list(ast.walk(tree))
    return [found for node in nodes for look in LOOKS for found in look(node)]


LOOKS = (unsafe_imports, unsafe_calls)


class TestSources:
    @pytest.mark.parametrize(
        "code",
        [
            "import pickle",
            "import os, pickle as p",
            "from pickle import loads",
            "def f():\n    from joblib import load",
            "torch.load(path)",
            "from torch import load",
            "eval('1')",
            "x = exec(code)",
            "f(trust_remote_code=True)",
            "f(trust_remote_code=flag)",
            "f(**{'trust_remote_code': True})",
            "model.resize_token_embeddings(5)",
            "getattr(model, 'resize_token_embeddings')(5)",
        ],
    )
    def test_what_is_unsafe_is_noticed(self, code: str) -> None:
        assert unsafe(ast.parse(code))

    @pytest.mark.parametrize(
        "code", ["model.eval()", "'no pickle'", "f(trust_remote_code=False)", "json.load(file)"]
    )
    def test_what_is_safe_is_not(self, code: str) -> None:
        assert not unsafe(ast.parse(code))

    @pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
    def test_no_source_does_anything_unsafe(self, path: Path) -> None:
        assert unsafe(ast.parse(path.read_text(encoding="utf-8"))) == []

    @pytest.mark.parametrize("path", PUBLIC, ids=lambda path: str(path.relative_to(PACKAGE)))
    def test_every_public_module_says_what_it_is_for(self, path: Path) -> None:
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))

    def test_all_of_them_were_looked_at(self) -> None:
        modules = [info.name for info in pkgutil.walk_packages([str(PACKAGE)], "univerb.")]
        assert len(SOURCES) == len(modules) + 1 > 20

    def test_no_file_is_called_utils(self) -> None:
        vague = {"utils", "util", "helpers", "misc", "common"}
        assert not [path for path in PACKAGE.rglob("*") if path.stem in vague]

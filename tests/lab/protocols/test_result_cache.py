"""Results kept as they come: every cut of the file is mended, and what cannot be kept is said."""

import pytest

from univerb.errors import OptionError
from univerb.lab.protocols.result_cache import ResultCache


def test_every_cut_of_the_file_is_mended(tmp_path):
    results = {f"dé {number}": {"value": number / 3} for number in range(3)}
    whole = ResultCache(tmp_path, "k")
    for document, result in results.items():
        whole.put(document, "m", result)
    path = tmp_path / "documents-k.jsonl"
    content = path.read_bytes()
    for size in range(len(content) + 1):
        path.write_bytes(content[:size])
        cut = ResultCache(tmp_path, "k")
        for document, result in results.items():
            if cut.get(document, "m") is None:
                cut.put(document, "m", result)
        again = ResultCache(tmp_path, "k")
        assert {document: again.get(document, "m") for document in results} == results


def test_a_file_that_cannot_be_written_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match=r"documents-k.jsonl.*cannot be written"):
        ResultCache(tmp_path / "file" / "kept", "k")


def test_without_a_folder_nothing_is_kept():
    cache = ResultCache(None, "k")
    cache.put("d", "m", {"value": 1})
    assert (cache.get("d", "m"), ResultCache(None, "k").get("d", "m")) == ({"value": 1}, None)

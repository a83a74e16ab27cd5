"""Atomic writes, locks and JSON lines, through failures, kills and torn lines."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from univerb.errors import CorpusError, OptionError
from univerb.files import (
    JsonLines,
    atomic_folder,
    atomic_path,
    atomic_write,
    exclusive_lock,
    lock_alone,
    lock_shared,
    remove_drafts,
)

ROWS = [{"id": "a", "text": "grün"}, {"id": "b", "text": "two\nlines"}, {"id": "c"}]


def run_until_killed(body: str, folder: Path) -> int:
    """Run Python code in another process, in a folder, and return how it ended."""
    code = "import os, signal\nfrom pathlib import Path\nfrom univerb.files import *\n"
    result = subprocess.run(
        [sys.executable, "-c", code + textwrap.dedent(body)], cwd=folder, check=False
    )
    return result.returncode


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_write_replaces_the_file_with_plain_permissions(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    atomic_write(path, "grün")
    assert path.read_bytes() == "grün".encode()
    atomic_write(path, b"\xff")
    assert path.read_bytes() == b"\xff"
    (tmp_path / "plain").touch()
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert names(tmp_path) == ["file", "plain"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_changes_nothing(tmp_path, error):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(type(error)), atomic_path(path) as draft:
        draft.write_text("new")
        raise error
    with pytest.raises(type(error)), atomic_folder(tmp_path / "folder") as draft:
        (draft / "part").write_text("new")
        raise error
    assert path.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_content_and_name_are_on_the_disk_before_a_write_returns(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(
        os, "fsync", lambda fd: (events.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd))
    )
    monkeypatch.setattr(os, "replace", lambda a, b: (events.append("rename"), replace(a, b)))
    atomic_write(tmp_path / "file", "new")
    draft, *rest = events
    assert Path(draft).name.startswith(".file.")
    assert rest == ["rename", str(tmp_path)]
    events.clear()
    with atomic_folder(tmp_path / "folder") as draft:
        (draft / "in").mkdir()
        (draft / "in" / "part").touch()
    *synced, rename, parent = events
    assert set(synced) == {str(draft), str(draft / "in"), str(draft / "in" / "part")}
    assert (rename, parent) == ("rename", str(tmp_path))
    with JsonLines(tmp_path / "rows") as lines:
        events.clear()
        lines.append(*ROWS)
        assert events == [str(tmp_path / "rows")]


def test_a_folder_that_exists_stays_unless_it_is_to_be_replaced(tmp_path):
    folder = tmp_path / "deep" / "folder"
    for content, replace in [("first", False), ("second", False), ("third", True)]:
        with atomic_folder(folder, replace=replace) as draft:
            (draft / content).touch()
        assert names(folder) == ["third" if replace else "first"]
    assert names(tmp_path / "deep") == ["folder"]


def test_what_a_killed_writer_left_can_be_removed(tmp_path):
    body = """
        with atomic_path(Path("file")) as draft, atomic_folder(Path("folder")) as folder:
            draft.write_text("half")
            (folder / "part").touch()
            os.kill(os.getpid(), signal.SIGKILL)
    """
    assert run_until_killed(body, tmp_path) == -signal.SIGKILL
    (tmp_path / "mine.draft").touch()
    assert len(names(tmp_path)) == 3
    remove_drafts(tmp_path)
    assert names(tmp_path) == ["mine.draft"]


def test_a_lock_keeps_others_out_and_ends_with_its_process(tmp_path):
    busy = CorpusError("busy")
    with exclusive_lock(tmp_path / "lock", busy):
        with pytest.raises(CorpusError, match="busy"), exclusive_lock(tmp_path / "lock", busy):
            pytest.fail("two at once")
        assert run_until_killed("exclusive_lock(Path('lock'), ValueError()).__enter__()", tmp_path)
    body = """
        exclusive_lock(Path("lock"), ValueError()).__enter__()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert run_until_killed(body, tmp_path) == -signal.SIGKILL
    with exclusive_lock(tmp_path / "lock", busy):
        pass


@pytest.mark.parametrize("header", [None, {"settings": "ü"}])
def test_lines_torn_at_any_byte_are_continued(tmp_path, header):
    path = tmp_path / "rows"
    with JsonLines(path, header) as lines:
        lines.append(*ROWS[:2])
        lines.append(ROWS[2])
        assert list(lines) == ROWS
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with JsonLines(path, header) as lines:
            rows = list(lines)
            assert rows == ROWS[: len(rows)]
            assert len(rows) >= whole[:size].count(b"\n") - (header is not None)
            lines.append(*ROWS[len(rows) :])
            assert list(lines) == ROWS
        assert path.read_bytes() == whole


def test_a_kill_between_appends_loses_nothing_that_was_appended(tmp_path):
    body = """
        lines = JsonLines(Path("rows"), {"key": 1})
        for number in range(3):
            lines.append({"number": number})
        open("rows", "ab").write(b'{"number": 3, "te')
        os.kill(os.getpid(), signal.SIGKILL)
    """
    assert run_until_killed(body, tmp_path) == -signal.SIGKILL
    with JsonLines(tmp_path / "rows", {"key": 1}) as lines:
        assert [row["number"] for row in lines] == [0, 1, 2]
        lines.truncate(1)
        lines.append({"number": 7})
        assert [row["number"] for row in lines] == [0, 7]


def test_an_append_that_fails_leaves_whole_lines(tmp_path, monkeypatch):
    with JsonLines(tmp_path / "rows") as lines:
        lines.append(ROWS[0])
        before = (tmp_path / "rows").read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(28, "full")))
            with pytest.raises(OSError, match="full"):
                lines.append(ROWS[1])
        assert (tmp_path / "rows").read_bytes() == before
        lines.append(ROWS[2])
        assert list(lines) == [ROWS[0], ROWS[2]]


def test_publishing_leaves_only_the_rows_in_their_place(tmp_path):
    with JsonLines(tmp_path / "out.partial", {"key": 1}) as lines:
        lines.append(*ROWS)
        lines.publish(tmp_path / "out")
    assert [json.loads(line) for line in (tmp_path / "out").open(encoding="utf-8")] == ROWS
    assert names(tmp_path) == ["out"]


def test_half_a_character_can_be_written_and_read(tmp_path):
    with JsonLines(tmp_path / "rows") as lines:
        lines.append({"text": "\ud800"})
    with JsonLines(tmp_path / "rows") as lines:
        assert list(lines) == [{"text": "\ud800"}]


@pytest.mark.parametrize("content", ["notes", "notes\n", "{\n}\n", '[1]\n{"a": 1}\n', '{"a"\n{}\n'])
def test_files_of_something_else_are_refused_and_stay(tmp_path, content):
    path = tmp_path / "rows"
    path.write_text(content)
    with pytest.raises(OptionError, match="line 1"):
        JsonLines(path)
    assert path.read_text() == content


def test_rows_of_another_header_or_in_use_are_refused(tmp_path):
    path = tmp_path / "rows"
    with JsonLines(path, {"key": 1}) as lines:
        lines.append(ROWS[0])
        before = path.read_bytes()
        with pytest.raises(OptionError, match="in use"):
            JsonLines(path, {"key": 1})
    for header in ({"key": 2}, {"key": 1, "more": 2}):
        with pytest.raises(OptionError, match="other options"):
            JsonLines(path, header)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content", ['{"key": 2}\n{"a": 1}\n{"torn', '{"key": 2', '{"torn', "notes", '{"key": 1} \n{"b"']
)
def test_a_file_with_another_header_stays_byte_for_byte(tmp_path, content):
    path = tmp_path / "rows"
    path.write_text(content)
    with pytest.raises(OptionError, match=r"other options.*Move it away, or name another file"):
        JsonLines(path, {"key": 1})
    assert path.read_text() == content


def test_a_shared_lock_is_shared_and_ends_with_its_process(tmp_path):
    path = tmp_path / "file"
    with pytest.raises(FileNotFoundError):
        lock_shared(path)
    with lock_alone(path) as is_alone:
        assert is_alone, "there is nothing to share"
    path.touch()
    first, second = lock_shared(path), lock_shared(path)
    for descriptor in (first, second):
        with lock_alone(path) as is_alone:
            assert not is_alone
        os.close(descriptor)
    assert run_until_killed("lock_shared(Path('file'))\nos.kill(os.getpid(), 9)", tmp_path) == -9
    with lock_alone(path) as is_alone:
        assert is_alone


def test_who_waits_for_a_shared_lock_learns_that_the_file_has_gone(tmp_path):
    path, raised = tmp_path / "file", []
    path.touch()

    def wait() -> None:
        with pytest.raises(FileNotFoundError) as error:
            lock_shared(path)
        raised.append(error)

    opened, really_open = threading.Event(), os.open

    with lock_alone(path), pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "open", lambda *args: (really_open(*args), opened.set())[0])
        thread = threading.Thread(target=wait)
        thread.start()
        assert opened.wait(60)
        path.unlink()
        path.touch()
    thread.join(60)
    assert raised


def test_a_folder_is_never_lost_between_the_two_renames(tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "old").touch()
    replace = os.replace

    def interrupted(source, target):
        if Path(target) == folder and (Path(source) / "new").exists():
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt), atomic_folder(folder, replace=True) as draft:
        (draft / "new").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["folder", "old"]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    atomic_write(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "target").read_text() == "new"

"""Versions of a corpus on disk: readers keep theirs while writers make new ones.

Whoever has a corpus open shares a lock on a file of its version. A writer keeps the manifest of
the version that it replaces, beside the new one, until the old objects are deleted: by itself, or,
if they were being read or it was killed, by whoever opens the corpus next and may write it.
"""

import re
import shlex
import shutil
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from univerb.corpus.manifest import MANIFEST, OBJECTS, Manifest, read_manifest, write_manifest
from univerb.corpus.objects import SUMS, unreadable
from univerb.errors import CorpusError, CorruptCorpusError
from univerb.files import exclusive_lock, lock_alone, lock_shared, remove_drafts, sync

LOCK = "lock"
_OBJECT = re.compile(r"\.?(shard|index|phrases|vectors)-[0-9a-f]{32}(\.|$)")


def lease(folder: Path, version: Manifest) -> int:
    """Keep the objects of a version until the descriptor is closed or the process ends.

    Nothing is written: a corpus on a read-only disk can be leased, too.
    """
    path = _leased_file(folder, version)
    try:
        return lock_shared(path)
    except OSError as error:
        raise unreadable(path, error) from error


def retire(folder: Path, version: Manifest) -> None:
    """Record that a version is about to be replaced, and its objects to be deleted."""
    write_manifest(folder, version, _record(folder, version).name)


def sweep(folder: Path, present: Manifest, *, keep_unnamed: bool = False) -> None:
    """Delete the objects of replaced versions that nobody reads, while the corpus is locked.

    What belongs to no version goes too, unless `keep_unnamed`: an interrupted change will need it.
    """
    root, kept = folder / OBJECTS, _names(present)
    if (record := _record(folder, present)).exists():
        # A change has led back to a version that was replaced before, or did not replace it.
        record.unlink()
    with ExitStack() as stack:
        unread: dict[Path, set[str]] = {}
        for path, version in _retired(folder).items():
            if stack.enter_context(lock_alone(_leased_file(folder, version))):
                unread[path] = _names(version)
            else:
                kept |= _names(version)
        dropped = set().union(*unread.values())
        if not keep_unnamed:
            dropped |= {path.name for path in root.iterdir() if _OBJECT.match(path.name)}
        for name in dropped - kept:
            shutil.rmtree(root / name, ignore_errors=True)
        # Before the record goes: after a crash, the next one would not know what is left.
        sync(root)
        for path, names in unread.items():
            if not any((root / name).exists() for name in names - kept):
                path.unlink(missing_ok=True)
    remove_drafts(folder, "manifest*")


def finish_sweep(folder: Path) -> None:
    """Delete what nobody reads any more, if this process may and no writer is at work."""
    with suppress(OSError, CorpusError):
        present = read_manifest(folder)
        retired = _retired(folder).values()
        if present in retired or any(_is_unread(folder, version) for version in retired):
            with exclusive_lock(folder / LOCK, CorpusError()):
                sweep(folder, read_manifest(folder), keep_unnamed=True)


def is_being_written(folder: Path) -> bool:
    """Tell whether a writer is at work: one that ever was has left its lock."""
    if not (folder / LOCK).is_file():
        return False
    try:
        with exclusive_lock(folder / LOCK, CorpusError()):
            return False
    except CorpusError:
        return True
    except OSError:  # a disk that nobody can write
        return False


def missing_corpus(folder: Path) -> CorpusError:
    """Make the error for a folder without a manifest."""
    # The lock of a writer tells a corpus from other folders.
    if not (folder / OBJECTS).is_dir() or not (folder / LOCK).is_file():
        if folder.is_file():
            return CorpusError(f"{str(folder)!r} is no folder. Name the folder of a corpus.")
        state = "holds no corpus" if folder.is_dir() else "does not exist"
        command = f"univerb index DOCS -o {shlex.quote(str(folder))}"
        return CorpusError(f"{str(folder)!r} {state}. Build one with: {command}")
    if is_being_written(folder):
        return CorpusError(f"{str(folder)!r} is being built. Wait until that has finished.")
    return CorpusError(
        f"the build of {str(folder)!r} was interrupted. Run the same `univerb index` command again "
        "to continue: what is finished is kept."
    )


class Leftovers(NamedTuple):
    """The files in a corpus's folder that its present version does not name."""

    earlier: list[Path]
    """Of replaced versions that are still being read."""
    unfinished: list[Path]
    """Of a change that is under way, or was interrupted."""
    unknown: list[Path]


def find_leftovers(folder: Path, present: Manifest) -> Leftovers:
    """Find the files that do not belong to the present version."""
    root = folder / OBJECTS
    named = {folder / MANIFEST, folder / LOCK}
    named |= {root / e.name / name for e in present.entries() for name in (*e.sizes, SUMS)}
    retired = _retired(folder)
    earlier = {*retired, *(root / name for version in retired.values() for name in _names(version))}
    unfinished = {path for path in root.iterdir() if _OBJECT.match(path.name)} - earlier
    unfinished |= set(folder.glob(".manifest*.draft"))
    known = {root / name for name in _names(present)}
    leftovers = Leftovers([], [], [])
    for path in sorted(folder.rglob("*")):
        if path in named or (path.is_dir() and not path.is_symlink()):
            continue
        places = {path, *path.parents} - known
        kind = 0 if places & earlier else 1 if places & unfinished else 2
        leftovers[kind].append(path)
    return leftovers


def _retired(folder: Path) -> dict[Path, Manifest]:
    """Return the replaced versions by the files that record them."""
    versions = {}
    for path in folder.glob("manifest-phrases-*.json"):
        # One that is damaged names nothing; the next change deletes what belongs to no version.
        with suppress(CorruptCorpusError):
            versions[path] = read_manifest(folder, path.name)
    return versions


def _record(folder: Path, version: Manifest) -> Path:
    return folder / f"manifest-{_leased_file(folder, version).parent.name}.json"


def _is_unread(folder: Path, version: Manifest) -> bool:
    with lock_alone(_leased_file(folder, version)) as is_unread:
        return is_unread


def _leased_file(folder: Path, version: Manifest) -> Path:
    # The name of the phrases' object is a hash of all other objects: one file for each version.
    assert version.phrases
    return folder / OBJECTS / version.phrases.name / SUMS


def _names(version: Manifest) -> set[str]:
    return {entry.name for entry in version.entries()}

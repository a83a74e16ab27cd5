"""Builds in processes of their own that are killed at a chosen system call."""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import univerb
from conftest import TEXT, make_gpt2, make_tokenizer, saved, with_fresh_encoder
from univerb.corpus import open_corpus
from univerb.corpus.manifest import CorpusSettings
from univerb.modeling.dynamic import DynamicLM
from univerb.phrase import Document

HOW = CorpusSettings(max_words=16, sizes=(2, 4))

# One command of a user, in a process of its own. It stops at the n-th system call that brings
# something onto the disk, and says on standard output what it computes.
DRIVER = """
import os, signal, sys
from pathlib import Path
from univerb.corpus import build as building
from univerb.corpus import encode as encoding
from univerb.corpus import shards
from univerb.modeling.dynamic import DynamicLM
from univerb.parallel import make_workers
from univerb.corpus import objects
from univerb.corpus.manifest import CorpusSettings
from killed_builds import HOW, documents

def counted(module, name):
    real = getattr(module, name)
    def write(task, folder):
        print(name, module.__name__.rpartition(".")[2], task.key[:8], flush=True)
        return real(task, folder)
    setattr(module, name, write)

def main(model, folder):
    lm = DynamicLM.from_pretrained(model)
    print("ready", flush=True)
    for line in sys.stdin:
        verb, target, last, ray = line.split()
        if ray == "1":
            plain = HOW.model_copy(update={"vectors": False})
            shards.SHARD_CHARACTERS = 400
            os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # listen to this machine only
            import ray as cluster
            cluster.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
            pool = make_workers(ray_address="auto")
            builder = building.CorpusBuilder(target, lm.tokenizer, plain, workers=pool)
            builder.add(documents(verb))
        elif os.fork() == 0:
            try:
                run(lm, Path(target), verb, int(last))
            finally:  # at once: an interpreter's own end takes seconds
                os._exit(0)
        else:
            os.wait()
        print("end", flush=True)

def run(lm, folder, verb, last):
    shards.SHARD_CHARACTERS, encoding.BATCH = 400, 32
    counted(shards, "_write")
    counted(encoding, "_write")
    left = [last]
    def stop_at(name):
        real = getattr(os, name)
        def call(*args, **kwargs):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)
        setattr(os, name, call)
    for name in ("fsync", "replace", "mkdir", "rmdir", "unlink"):
        stop_at(name)
    builder = building.CorpusBuilder(folder, lm.tokenizer, HOW, lm=lm)
    if verb == "remove":
        builder.remove(["d1", "d4"])
    else:
        builder.add(documents(verb))
    print("calls", last - left[0], flush=True)

if __name__ == "__main__":
    main(*sys.argv[1:])
"""


def documents(verb: str) -> list[Document]:
    first = [Document(f"{TEXT} Clause {'x' * i}.", f"d{i}") for i in range(4)]
    if verb == "build":
        return first
    return [
        Document(f"{TEXT} A new clause, a new clause.", "d1"),
        Document(f"Another text of another day. {TEXT}", "d4"),
    ]


class Session:
    """A process that has loaded the model and runs commands in children of its own."""

    def __init__(self, model: Path, script: Path) -> None:
        script.write_text(DRIVER)
        tests, source = Path(__file__).parent, Path(univerb.__file__).parents[1]
        paths = os.pathsep.join(map(str, (tests, source)))
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(model), "x"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        )
        assert self._line() == "ready"

    def run(self, verb: str, folder: Path, last: int = 1 << 30, ray: int = 0):
        """Return what was computed, and how many calls there were if it came to its end."""
        assert self.process.stdin
        self.process.stdin.write(f"{verb} {folder} {last} {ray}\n")
        self.process.stdin.flush()
        made, calls = [], None
        while (line := self._line()) != "end":
            if line.startswith("calls"):
                calls = int(line.split()[1])
            else:
                made.append(line)
        return made, calls

    def _line(self) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, "the driver died"
        return line.strip()


@contextmanager
def started_session(folder: Path) -> Iterator[Session]:
    """Save a tiny model and start a process that has loaded it."""
    backbone = saved(folder / "model", DynamicLM.wrap(make_gpt2(), make_tokenizer()))
    with_fresh_encoder(backbone).save_pretrained(folder / "encoder")
    session = Session(folder / "encoder", folder / "driver.py")
    yield session
    session.process.stdin.close()
    session.process.wait(30)


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


class Killed:
    """One verb, killed at moments that are counted in system calls."""

    before = {"build": [], "append": ["build"], "remove": ["build", "append"]}

    def __init__(self, session: Session, verb: str, folder: Path) -> None:
        self.session, self.verb, self.folder = session, verb, folder
        whole = folder / "whole"
        for step in self.before[verb]:
            session.run(step, whole)
        self.old = content(whole) if self.before[verb] else {}
        made, self.calls = session.run(verb, whole)
        self.new = content(whole)
        assert self.calls > 20 and len(made) >= (2 if verb != "remove" else 0)

    def check(self, moments: Iterable[int]) -> None:
        """Kill at each moment: old or new is there, removed text is gone, and it goes on."""
        for moment in moments:
            folder = self.folder / f"killed{moment}"
            for name, data in self.old.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(data)
            _, ended = self.session.run(self.verb, folder, moment)
            assert ended is None, "it was killed"
            self._check_state(folder, moment)
            done = {path.name.partition("-")[2][:8] for path in (folder / "objects").glob("[!.]*")}
            second, ended = self.session.run(self.verb, folder)
            assert not {line.split()[2] for line in second} & done, "nothing is computed again"
            # A removal that had been done: the second says that there is no such document.
            assert ended is not None or self.verb == "remove"
            assert content(folder) == self.new, (self.verb, moment)

    def _check_state(self, folder: Path, moment: int) -> None:
        if not self.old and not (folder / "manifest.json").exists():
            return
        assert open_corpus(folder).verify()
        now, files = (folder / "manifest.json").read_bytes(), content(folder)
        assert now in (self.old.get("manifest.json"), self.new["manifest.json"])
        if self.verb == "remove" and now == self.new["manifest.json"]:
            held = b"".join([*files.values(), *map(str.encode, files)])
            assert b"Another text" not in held and b"another" not in held, moment

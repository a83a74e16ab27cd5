"""Faults put into a copy of the package on purpose: the tests named for each must notice.

A fault is one replacement in one file. Where the code has changed, the replacement has to follow.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import univerb

ROOT = Path(__file__).parents[2]
PACKAGE = Path(univerb.__file__).parent
MUTANTS = {
    "a source is not cut to what was written": (
        "phrase.py", "replace(span, end=span.start + length)", "span",
        "tests/invariants/test_any_text.py tests/decoding/test_writer.py",
    ),
    "a citation ignores case": (
        "applications/citations.py", "a == b or (a, b)", "a.lower() == b.lower() or (a, b)",
        "tests/applications/test_citations.py",
    ),
    "a citation is not compared with its source": (
        "applications/citations.py", "if _has(passage, span, copied)), None)",
        "if span.document == passage.document), None)", "tests/applications/test_citations.py",
    ),
    "the last block's checksum is skipped": (
        "corpus/objects.py", "for block in range(count) if blocks",
        "for block in range(count - 1) if blocks", "tests/corpus/test_corpus_readers.py",
    ),
    "a checksum is not compared": (
        "corpus/objects.py", "if crc != int(", "if crc == -int(", "tests/corpus/test_corpus_damage.py",
    ),
    "a reader keeps no lease": (
        "corpus/versions.py", "return lock_shared(path)", "return os.open(path, os.O_RDONLY)",
        "tests/corpus/test_corpus_readers.py tests/corpus/test_corpus_changes.py",
    ),
    "vectors need not be finite": (
        "corpus/vectors.py", "isfinite", "isreal", "tests/corpus/test_corpus_forged.py",
    ),
    "a batch shares prefixes": (
        "applications/batch_jobs.py", '{"prefix_cache": False}', "{}",
        "tests/applications/test_batch_jobs.py",
    ),
    "a file is not on the disk before it is named": (
        "files.py", "        sync(draft)\n", "", "tests/test_files.py",
    ),
    "a new name is not on the disk": (
        "files.py", "        draft.unlink(missing_ok=True)\n        raise\n    sync(path.parent)\n",
        "        draft.unlink(missing_ok=True)\n        raise\n", "tests/test_files.py",
    ),
    "appended rows are not on the disk": (
        "files.py", "                os.fsync(file.fileno())\n", "", "tests/test_files.py",
    ),
    "half a row stays after an error": (
        "files.py", "            os.truncate(self._path, size)\n", "", "tests/test_files.py",
    ),
    "every token of a phrase is accepted": (
        "decoding/choice.py", "if tolerance == 1.0:\n        return True", "return True",
        "tests/invariants/test_modes.py",
    ),
    "acceptance is not drawn": (
        "decoding/choice.py", "if sampler.is_greedy:", "if True:",
        "tests/invariants/test_sampled_modes.py",
    ),
    "filters leave phrases alone": (
        "decoding/choice.py", "    if sampler.filters:\n        both = sampler.filtered(both, _columns(seen, len(logits), phrases))",
        "    both[: len(logits)] = sampler.filtered(allowed, [i for i in seen if i < len(logits)])",
        "tests/invariants/test_sampled_modes.py",
    ),
    "a rejected token may be drawn again": (
        "decoding/chooser.py", "others[token] = -numpy.inf", "pass",
        "tests/invariants/test_sampled_modes.py",
    ),
    "repeated tokens are not masked": (
        "decoding/chooser.py", "logits[list(masked)] = -numpy.inf", "pass",
        "tests/decoding/test_repetition.py",
    ),
    "the budget has no room for required terms": (
        "decoding/terms.py", "0 < self.reserved >= self._budget - written",
        "0 < self.reserved > self._budget - written", "tests/decoding/test_terms.py",
    ),
    "a term that did not fit is kept": (
        "decoding/terms.py", "if deficit <= self._allowance(term, written):\n            return True",
        "return True", "tests/decoding/test_terms.py",
    ),
    "rows of a rejected draft stay": (
        "engines/torch/session.py", "self._mask[index, used] = False", "pass",
        "tests/invariants/test_modes.py",
    ),
    "a prefix of changed weights is used": (
        "engines/torch/prefix_cache.py", "if entry.version == now", "if entry.version",
        "tests/engines/test_prefix_cache.py",
    ),
    "a prefix is one token too long": (
        "engines/torch/prefix_cache.py", "wanted = tuple(prompt[:-1])", "wanted = tuple(prompt)",
        "tests/engines/test_prefix_cache.py",
    ),
    "stop strings leak": (
        "decoding/writer.py", "                return length\n        return 0", "                return 0\n        return 0",
        "tests/decoding/test_writer.py",
    ),
    "a piece keeps the tokens behind a stop string": (
        "decoding/writer.py", "            ids = ids[:-1]\n", "            break\n",
        "tests/decoding/test_writer.py",
    ),
    "banned phrases are written": (
        "decoding/phrase_head.py", "return has_eos or any(text in phrase.text for text in self._ban)",
        "return has_eos", "tests/decoding",
    ),
    "a removed phrase is written": (
        "decoding/phrase_head.py", "return row < 0 or bool(self._bias[row] == -math.inf)",
        "return False", "tests/decoding tests/invariants/test_modes.py",
    ),
    "phrases may run over the budget": (
        "decoding/phrase_head.py", "if max_length < self._max_length:", "if False:",
        "tests/invariants/test_modes.py",
    ),
    "verify has a tolerance": (
        "config.py", 'if mode == "verify":\n            values["tolerance"] = 0.0', "pass",
        "tests/invariants/test_modes.py",
    ),
    "an idle phrase expires too early": (
        "vocabulary.py", "used < self._clock - idle", "used <= self._clock - idle",
        "tests/test_vocabulary.py",
    ),
    "a phrase that comes back gets no new weight": (
        "vocabulary.py", "self._weights[index] = merged.weight", "pass", "tests/test_vocabulary.py",
    ),
    "weights of another folder are opened": (
        "model_folder.py", "Path(name).name != name or", "", "tests/modeling/test_backbone_checks.py tests/modeling",
    ),
    "logits need not be finite": (
        "modeling/phrase_model.py", "if not math.isfinite(logit):", "if False:",
        "tests/modeling tests/decoding tests/engines",
    ),
    "encoder weights need not be finite": (
        "modeling/checkpoint.py", "first_not_finite(weights.items())", "None",
        "tests/modeling/test_checkpoint_damage.py tests/modeling",
    ),
    "links lead out of a folder": (
        "documents/read.py", " and path.resolve().is_relative_to(folder.resolve())", "",
        "tests/documents",
    ),
    "all phrases of a long text are kept": (
        "phrases/collection.py", "return ranked[:max_phrases]", "return ranked",
        "tests/phrases/test_collection.py",
    ),
    "the likelihood counts one segmentation": (
        "modeling/likelihood.py", "alpha[end] = numpy.logaddexp(alpha[end], here + match.score + bias)",
        "alpha[end] = numpy.maximum(alpha[end], here + match.score + bias)",
        "tests/modeling/test_likelihood.py",
    ),
    "extensions of golds skip the first": (
        "training/negatives.py", "for size in range(1, len(following) + 1))",
        "for size in range(2, len(following) + 1))", "tests/training/test_training_negatives.py",
    ),
    "an error of one request ends the job": (
        "applications/batch_jobs.py", "except Exception", "except ZeroDivisionError",
        "tests/applications/test_batch_jobs.py",
    ),
    "terminals obey what they are shown": (
        "cli/console.py", "return text.translate(_CONTROLS)", "return text", "tests/cli",
    ),
    "a copied sentence is judged by the model": (
        "lab/judging/entailment.py", "contains(", "(lambda *_: False)(",
        "tests/lab/judging/test_entailment.py",
    ),
}  # fmt: skip


@pytest.mark.stress
@pytest.mark.parametrize("fault", MUTANTS)
def test_a_fault_is_noticed(fault, tmp_path):
    file, code, mutated, tests = MUTANTS[fault]
    shutil.copytree(PACKAGE, tmp_path / "univerb", ignore=shutil.ignore_patterns("__pycache__"))
    path = tmp_path / "univerb" / file
    source = path.read_text("utf-8")
    assert code in source, f"{file} has no {code!r} any more: name what took its place"
    path.write_text(source.replace(code, mutated), "utf-8")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        [*command, *tests.split()], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 1, f"not noticed: {fault}\n{ran.stdout[-2000:]}"

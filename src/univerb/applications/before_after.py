"""What an LM writes on from held-out text before it has a corpus, and after: to be read."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from univerb.applications.context import DEFAULT_CONTEXT, in_context
from univerb.applications.corpus_profile import calibrated
from univerb.applications.passages import find_passages
from univerb.config import GenerationConfig
from univerb.corpus import Corpus
from univerb.decoding.loop import generate
from univerb.decoding.results import Generation
from univerb.documents.chunks import Chunk
from univerb.modeling.phrase_model import PhraseModel

_GREEDY = GenerationConfig(max_tokens=40)


@dataclass(frozen=True, slots=True)
class ShownContinuation:
    """A continuation, and what the LM had for it."""

    corpus: str | None
    """The corpus that its phrases are of; None if there are no phrases."""
    passages: tuple[Chunk, ...]
    """What was shown to the LM before the prompt."""
    generation: Generation

    def to_dict(self) -> dict[str, object]:
        """Return it as JSON can hold it."""
        return {
            "corpus": self.corpus,
            "passages": [asdict(passage) for passage in self.passages],
            **self.generation.to_dict(),
        }


@dataclass(frozen=True, slots=True)
class BeforeAfter:
    """How the beginning of a held-out passage is continued before and after."""

    document: str
    prompt: str
    before: ShownContinuation
    """By the plain LM that is shown nothing; or with the corpus to compare with."""
    without_phrases: ShownContinuation
    """By the plain LM that is shown what it is shown after."""
    after: ShownContinuation

    @property
    def is_changed(self) -> bool:
        """Whether the phrases changed the text: the passages alone do not count."""
        return self.after.generation.text != self.without_phrases.generation.text

    def to_dict(self) -> dict[str, object]:
        """Return it as JSON can hold it."""
        return {
            "document": self.document,
            "prompt": self.prompt,
            "before": self.before.to_dict(),
            "without_phrases": self.without_phrases.to_dict(),
            "after": self.after.to_dict(),
            "is_changed": self.is_changed,
        }


def write_before_after(
    lm: PhraseModel,
    prompts: Sequence[tuple[str, str]],
    before: Corpus | None,
    after: Corpus,
    k: int = 32,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[BeforeAfter, ...]:
    """Continue prompts as `generate` does with each corpus, greedily, with one budget for all.

    Prompts are texts, each with its document's name. `progress` is called with the number of
    prompts that are done, and of all.
    """
    written: list[BeforeAfter] = []
    for prompt, name in prompts:
        first = _continued(lm, prompt, before, k)
        last = _continued(lm, prompt, after, k)
        plain = _continued(lm, prompt, None, k, last.passages)
        written.append(BeforeAfter(name, prompt, first, plain, last))
        if progress:
            progress(len(written), len(prompts))
    return tuple(written)


def _continued(
    lm: PhraseModel, prompt: str, corpus: Corpus | None, k: int, passages: Sequence[Chunk] = ()
) -> ShownContinuation:
    """Continue a prompt with the phrases, passages and profile of a corpus, or behind passages."""
    config, vocabulary, name = _GREEDY, None, None
    if corpus is not None:
        if corpus.has_vectors:
            lm.attach(corpus)
        config, vocabulary = calibrated(config, corpus, lm), corpus.vocabulary(lm, prompt, k)
        name, passages = str(corpus.folder), find_passages(prompt, corpus, DEFAULT_CONTEXT)
    shown = in_context(lm, prompt, passages, config.max_tokens)
    result = generate(lm, shown.ids, vocabulary, **config.options())
    return ShownContinuation(name, shown.passages, result)

"""The decoding options that `univerb calibrate` chose for a corpus, saved in its folder."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from univerb.config import GenerationConfig
from univerb.corpus import Corpus
from univerb.errors import CorruptCorpusError
from univerb.files import atomic_write, read_regular
from univerb.modeling.phrase_model import PhraseModel

PROFILE = "profile.json"


class CorpusProfile(BaseModel):
    """How to decode with a corpus, as measured on held-out text."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    encoder: str = Field(max_length=128)
    phrase_bias: float = Field(ge=-100.0, le=100.0)
    eagerness: float = Field(default=0.0, ge=-100.0, le=100.0)
    tolerance: float = Field(ge=0.0, le=1.0)


def write_profile(corpus: Corpus, profile: CorpusProfile) -> None:
    """Save a corpus's profile, so that `generate` and `answer` use it."""
    atomic_write(corpus.folder / PROFILE, profile.model_dump_json(indent=2))


def read_profile(corpus: Corpus) -> CorpusProfile | None:
    """Return a corpus's profile, or None if it was not calibrated."""
    path = corpus.folder / PROFILE
    try:
        return CorpusProfile.model_validate_json(read_regular(path, 1 << 16))
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise CorruptCorpusError(
            f"{str(path)!r} is no profile of a corpus. The corpus itself is not concerned: write "
            "the profile again with `univerb calibrate`."
        ) from error


def profile_options(corpus: Corpus, fingerprint: str, mode: str | None = None) -> dict[str, Any]:
    """Return the biases and the `tolerance` of a corpus's profile that apply.

    None do if they were chosen for another encoder than the one with this fingerprint. They were
    chosen for the mode `unfold`.
    """
    profile = read_profile(corpus)
    if profile is None or profile.encoder != fingerprint or mode == "atomic":
        return {}
    names = {"phrase_bias", "eagerness"} | (set() if mode == "verify" else {"tolerance"})
    return profile.model_dump(include=names)


def calibrated(decoding: GenerationConfig, corpus: Corpus, lm: PhraseModel) -> GenerationConfig:
    """Fill what was left out with what calibration chose for a corpus, if it is for this mode."""
    mode = decoding.resolved(lm.profile).mode
    return decoding.filled(profile_options(corpus, lm.fingerprint(), mode))

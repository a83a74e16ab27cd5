"""Every option has a range, a name that is checked, and one definition."""

import math
import re

import numpy
import pytest
from pydantic import ValidationError

from univerb.config import GenerationConfig, GenerationOptions, Lora, Profile, describe
from univerb.errors import OptionError


def test_keywords_and_settings_have_the_same_names():
    assert set(GenerationOptions.__annotations__) == set(GenerationConfig.model_fields)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -5),
        ("max_tokens", True),
        ("max_tokens", 5.5),
        ("top_k", 2.5),
        ("seed", 1.5),
        ("stop", [5]),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", "hot"),
        ("temperature", True),
        ("seed", numpy.float32(1.5)),
        ("top_k", numpy.bool_(True)),
        ("top_p", 0.0),
        ("top_p", 1.5),
        ("top_k", -1),
        ("repetition_penalty", 0.0),
        ("seed", -1),
        ("tolerance", 1.1),
        ("phrase_bias", math.inf),
        ("no_repeat_ngram_size", -1),
        ("no_repeat_ngram_size", 2.5),
        ("mode", "magic"),
        ("overshoot", "maybe"),
        ("positions", "none"),
        ("truncate", "right"),
        ("stop", "text"),
        ("stop", [""]),
        ("ban", "text"),
        ("stop", {"a", "b"}),
        ("stop", 5),
    ],
)
def test_a_value_out_of_range_is_refused_and_named(name, value):
    with pytest.raises(OptionError, match=name):
        GenerationConfig(**{name: value})


@pytest.mark.parametrize("name", ["seed", "temperature"])
def test_a_number_that_python_cannot_even_write_is_refused(name):
    with pytest.raises(OptionError, match=f"{name} is <int>; it must be a"):
        GenerationConfig(**{name: 10**5000})


def test_an_unknown_option_suggests_the_nearest():
    with pytest.raises(OptionError, match="Did you mean 'max_tokens'"):
        GenerationConfig(max_token=5)


def test_verify_with_a_tolerance_is_a_contradiction():
    with pytest.raises(OptionError, match="verify"):
        GenerationConfig(mode="verify", tolerance=0.5)


@pytest.mark.parametrize(
    ("profile", "options"),
    [
        (Profile(mode="verify"), {"tolerance": 0.5}),
        (Profile(mode="atomic"), {"tolerance": 0.5}),
        (Profile(mode="unfold"), {"segment": True}),
        (Profile(mode="verify"), {"segment": True}),
    ],
)
def test_an_option_that_the_profiles_mode_has_no_use_for_is_not_dropped(profile, options):
    (name,) = options
    with pytest.raises(OptionError, match=f"{name}.*the model's profile says '{profile.mode}'"):
        GenerationConfig(**options).resolved(profile)
    resolved = GenerationConfig().resolved(profile)
    assert resolved.resolved(profile) == resolved


def test_numbers_of_python_and_numpy_are_the_same():
    given = {"temperature": 2, "seed": numpy.int64(3), "top_k": numpy.uint8(4), "tolerance": 1}
    config = GenerationConfig(top_p=numpy.float32(0.5), **given)
    assert config == GenerationConfig(temperature=2.0, seed=3, top_k=4, tolerance=1.0, top_p=0.5)
    assert {type(config.temperature), type(config.top_p), type(config.tolerance)} == {float}
    assert type(config.seed) is int


@pytest.mark.parametrize("tiny", [5e-324, 1e-45, 1e-38, 0.0009])
def test_a_temperature_near_0_is_greedy(tiny):
    assert GenerationConfig(temperature=tiny).temperature == 0.0
    assert GenerationConfig(temperature=0.001).temperature == 0.001


def test_none_is_as_good_as_not_given():
    assert GenerationConfig(**dict.fromkeys(GenerationConfig.model_fields)) == GenerationConfig()


def test_what_is_left_open_comes_from_the_profile():
    profile = Profile(mode="unfold", tolerance=0.4, phrase_bias=2.0)
    how = GenerationConfig().resolved(profile)
    assert (how.mode, how.tolerance, how.phrase_bias) == ("unfold", 0.4, 2.0)
    assert GenerationConfig(mode="verify").resolved(profile).tolerance == 0.0
    assert GenerationConfig(mode="atomic").resolved(profile).phrase_bias == 0.0
    assert GenerationConfig(mode="atomic", phrase_bias=1.0).resolved(profile).phrase_bias == 1.0
    assert GenerationConfig(tolerance=1.0).resolved(profile).tolerance == 1.0


def test_tolerance_0_is_never_computed_with_half_precision_weights():
    profile = Profile(dtype="float16", tolerance=0.5)
    for options in ({"mode": "verify"}, {"tolerance": 0.0}, {"tolerance": 0.0, "dtype": "float16"}):
        assert GenerationConfig(**options).resolved(profile).dtype == "float32"
    assert GenerationConfig().resolved(profile).dtype == "float16"
    assert GenerationConfig(mode="atomic", tolerance=0.0).resolved(profile).dtype == "float16"


def test_a_profile_of_version_1_is_read():
    profile = Profile.model_validate({"draft": 6.0, "escape": 3, "weights": "half"})
    assert profile == Profile(dtype="float16")


@pytest.mark.parametrize("old", ["draft", "escape", "reuse", "weights"])
def test_an_option_of_version_1_answers_with_its_new_name(old):
    with pytest.raises(OptionError, match=f"{old} of univerb 0.1 is now"):
        GenerationConfig(**{old: 1})


def test_limits_are_written_as_people_write_them():
    for options, extent in (
        ({"max_tokens": 0}, "between 1 and 1,048,576"),
        ({"top_p": 2.0}, "between 0.000001 and 1."),
        ({"phrase_bias": 1e9}, "between -1,000 and 1,000"),
    ):
        with pytest.raises(OptionError, match=re.escape(extent)):
            GenerationConfig(**options)


def test_a_limit_that_is_not_reached_is_said_to_be_so():
    with pytest.raises(ValidationError) as raised:
        Lora(dropout=1.5)
    message = "dropout is 1.5; it must be a number of at least 0 and below 1."
    assert describe(raised.value, Lora) == message

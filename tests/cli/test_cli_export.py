"""`univerb export`: an encoder with the profile that it ships with, nothing written by hand."""

import torch

from conftest import make_conditional, saved_encoder
from univerb.modeling.dynamic import DynamicLM


def test_an_encoder_is_exported_with_its_profile(run, tmp_path):
    encoder = saved_encoder(tmp_path, lm=make_conditional())
    profile = ("--eagerness", 2.5, "--tolerance", 0.97)
    profile += ("--kernel-dtype", "float16")
    ran = run("export", encoder, "-o", tmp_path / "shipped", *profile)
    assert ran.code == 0 and "conditional form" in ran.out
    before, after = (DynamicLM.from_pretrained(str(tmp_path / n)) for n in ("encoder", "shipped"))
    given = {"eagerness": 2.5, "tolerance": 0.97, "dtype": "float16"}
    assert after.profile.model_dump() == before.profile.model_dump() | given
    halves = before.encoder.state_dict()
    for name, weight in after.encoder.state_dict().items():
        assert torch.equal(weight, halves[name].half().float()), name


def test_a_folder_that_exists_stays_as_it_is(run, tmp_path):
    encoder = saved_encoder(tmp_path)
    ran = run("export", encoder, "-o", encoder)
    assert ran.code == 1 and "exists already" in ran.err
    ran = run("export", tmp_path / "tiny", "-o", tmp_path / "shipped")
    assert ran.code != 0 and "no encoder yet" in ran.err
    assert not (tmp_path / "shipped").exists()

"""Settings of runs: the paper's, those that ship, and every key with its default in the docs."""

import re
from pathlib import Path

import pytest
import yaml

from univerb.errors import OptionError
from univerb.training.config import TrainingConfig, read_config

ROOT = Path(__file__).parents[2]


def test_the_docs_have_every_key_with_its_default():
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    shown = yaml.safe_load(re.search(r"```yaml\n(.*?)```", page, re.DOTALL)[1])
    smallest = TrainingConfig.model_validate({"data": {"documents": []}, "run": {"steps": 1000}})
    assert shown == smallest.model_dump(mode="json")


def test_every_config_that_ships_is_read():
    paths = [*(ROOT / "configs").rglob("*.yaml")]
    assert len(paths) >= 7
    for path in paths:
        assert read_config(path).data.documents


def test_the_configs_of_the_paper_follow_its_numbers():
    folder = ROOT / "configs"
    gpt2, llama, ablation = (
        read_config(folder / "paper" / f"{name}.yaml")
        for name in ("gpt2-wikitext103", "tinyllama-lora", "ablation")
    )
    for config in (gpt2, llama, ablation):
        assert (config.run.steps, config.run.batch, config.run.accumulate) == (400_000, 4, 2)
        assert (config.optimiser.rate, config.optimiser.clip) == (5e-5, 1.0)
        assert (config.samples.kind, config.samples.sizes) == ("n-words", (2, 5))
        assert (config.encoder.heads, config.encoder_from) == ("tied", "gpt2")
        assert (config.encoder.projector, config.encoder.dropout) == ("act_linear", 0.1)
        assert (config.data.text, config.data.block, config.samples.gap) == ("cog", 256, (5, 12))
        assert (config.negatives.extensions, config.negatives.depth) == (2, 1)
        assert (config.optimiser.betas, config.optimiser.weight_decay) == ((0.9, 0.999), 0.0)
        assert (config.losses.alignment, config.losses.support) == ("context", "V")
    for config in (gpt2, llama):
        assert config.negatives.kinds == ("in-batch", "prefixes", "self-retrieval", "generation")
    assert (gpt2.regime, llama.regime, ablation.regime) == ("full", "lora", "full")
    assert (llama.lora.rank, llama.lora.alpha, llama.lora.dropout) == (8, 32, 0.1)
    for name in ("full", "lora"):
        assert read_config(folder / "tiny" / f"{name}.yaml").regime == name


TINY = ROOT / "configs" / "tiny" / "full.yaml"


def test_changes_stand_in_the_place_of_what_the_file_says():
    changes = ["run.steps=7", "frozen.max_options=null", "data.validation=[a, b]", "run.steps=8"]
    found = read_config(TINY, changes)
    wanted = read_config(TINY).model_dump()
    assert wanted["run"]["steps"] != 8
    wanted["run"]["steps"], wanted["frozen"]["max_options"] = 8, None
    wanted["data"]["validation"] = ("a", "b")
    assert found.model_dump() == wanted


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("run.steps", "'run.steps' changes no setting. Give SECTION.KEY=VALUE."),
        ("regime.steps=3", "'regime.steps=3' changes no setting"),
        ("run.steps=[", "is no value that YAML has"),
        ("run.stops=3", "stops"),
        ("run.steps=0", "steps"),
    ],
)
def test_a_change_that_means_nothing_is_refused(change, problem):
    with pytest.raises(OptionError) as error:
        read_config(TINY, [change])
    assert problem in str(error.value)

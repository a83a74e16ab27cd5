"""LoRA adapters: attached, saved, merged, and refused where they are not what they should be."""

import builtins
import json

import pytest
import torch

from conftest import MAKERS, make_llama
from univerb.config import Lora
from univerb.errors import CheckpointError, MissingExtra, OptionError
from univerb.modeling.adapter import SETTINGS, WEIGHTS, attach, load_adapter, save_adapter

IDS = torch.arange(1, 13)[None]


def trained(name="llama"):
    """A model whose adapter does something."""
    model = MAKERS[name]()
    adapted = attach(model, Lora())
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.05)
    return adapted.eval()


@pytest.fixture
def folder(tmp_path):
    save_adapter(trained(), tmp_path / "adapter")
    return tmp_path / "adapter"


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@torch.no_grad()
def test_what_is_saved_is_what_was_trained(name, tmp_path):
    bare = MAKERS[name]()
    adapted = trained(name)
    save_adapter(adapted, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [SETTINGS, WEIGHTS]
    loaded = load_adapter(MAKERS[name](), tmp_path)
    assert type(loaded) is type(bare)
    assert loaded.state_dict().keys() == bare.state_dict().keys()
    expected = adapted(input_ids=IDS).logits
    assert not torch.allclose(expected, bare(input_ids=IDS).logits, atol=0.1)
    torch.testing.assert_close(loaded(input_ids=IDS).logits, expected, atol=1e-3, rtol=1e-3)
    with adapted.disable_adapter():
        assert torch.equal(adapted(input_ids=IDS).logits, bare(input_ids=IDS).logits)


def test_a_fresh_adapter_changes_nothing_and_alone_is_trained():
    bare, model = make_llama(), make_llama()
    rows = model.get_input_embeddings(), model.get_output_embeddings()
    adapted = attach(model, Lora(rank=4, alpha=8)).eval()
    assert torch.equal(adapted(input_ids=IDS).logits, bare(input_ids=IDS).logits)
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert names and all("lora_" in name for name in names)
    assert (model.get_input_embeddings(), model.get_output_embeddings()) == rows
    settings = adapted.peft_config["default"]
    assert (settings.r, settings.lora_alpha, settings.lora_dropout) == (4, 8, 0.1)


@pytest.mark.parametrize("targets", [("no_such_layer",), ("lm_head",), ("q_proj", "embed_tokens")])
def test_layers_that_cannot_be_adapted(targets):
    model = make_llama()
    with pytest.raises(OptionError, match="lora.targets"):
        attach(model, Lora(targets=targets))
    assert model.state_dict().keys() == make_llama().state_dict().keys()


def test_peft_reads_the_files(folder):
    from peft import PeftModel

    loaded = PeftModel.from_pretrained(make_llama(), folder)
    expected = trained()(input_ids=IDS).logits
    torch.testing.assert_close(loaded(input_ids=IDS).logits, expected)


def changed(folder, **values):
    settings = json.loads((folder / SETTINGS).read_text())
    (folder / SETTINGS).write_text(json.dumps(settings | values))


@pytest.mark.parametrize(
    "values",
    [
        {"auto_map": {"AutoModel": "code.Model"}},
        {"auto_mapping": {"base_model_class": "X", "parent_library": "os"}},
        {"megatron_config": {"a": 1}, "megatron_core": "evil.module"},
        {"megatron_core": "evil.module"},
        {"modules_to_save": ["lm_head"]},
        {"use_dora": True},
        {"rank_pattern": {"q_proj": 2}},
        {"trust_remote_code": True},
        {"peft_type": "IA3"},
        {"r": 0},
        {"r": 10**9},
        {"lora_dropout": "a"},
        {"target_modules": 3},
    ],
    ids=str,
)
def test_settings_that_are_no_plain_adapter(folder, values):
    changed(folder, **values)
    with pytest.raises(CheckpointError, match=SETTINGS):
        load_adapter(make_llama(), folder)


def test_files_that_are_damaged_or_missing(folder, tmp_path):
    with pytest.raises(CheckpointError, match="no readable"):
        load_adapter(make_llama(), tmp_path / "nowhere")
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[: len(data) // 2])
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_adapter(make_llama(), folder)
    (folder / SETTINGS).write_text("[")
    with pytest.raises(CheckpointError, match="no readable"):
        load_adapter(make_llama(), folder)


def test_pickles_are_never_opened(folder):
    (folder / WEIGHTS).rename(folder / "adapter_model.bin")
    with pytest.raises(CheckpointError, match="pickled"):
        load_adapter(make_llama(), folder)


@pytest.mark.parametrize("values", [{"r": 4}, {"target_modules": ["q_proj"]}], ids=str)
def test_weights_that_do_not_fit_leave_the_model_alone(folder, values):
    changed(folder, **values)
    model = make_llama()
    with pytest.raises(CheckpointError, match="does not fit"):
        load_adapter(model, folder)
    assert torch.equal(model(input_ids=IDS).logits, make_llama()(input_ids=IDS).logits)
    assert model.state_dict().keys() == make_llama().state_dict().keys()


def test_another_model(folder):
    with pytest.raises(CheckpointError, match="does not fit"):
        load_adapter(MAKERS["gpt2"](), folder)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot write"):
        save_adapter(trained(), tmp_path / "file")


def test_without_peft(monkeypatch, folder):
    real = builtins.__import__

    def missing(name, *rest, **named):
        if name.split(".")[0] == "peft":
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", missing)
    for call in (lambda: attach(make_llama(), Lora()), lambda: load_adapter(make_llama(), folder)):
        with pytest.raises(MissingExtra, match=r"univerb\[train\]"):
            call()

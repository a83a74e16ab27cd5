"""HF generate() over V + P, on a model that shares the user's weights and leaves it alone."""

import pytest
import torch
from transformers import LogitsProcessor

from conftest import stir
from univerb.decoding.loop import generate
from univerb.modeling.hf_generate import expand, for_generate

PROMPT = torch.tensor([[5, 9, 17, 33]])


def greedy(model, **options):
    return model.generate(
        PROMPT, max_new_tokens=12, do_sample=False, pad_token_id=0, eos_token_id=None, **options
    )


def test_without_phrases_tokens_are_identical(tiny):
    grown = for_generate(tiny, tiny.vocabulary())
    assert torch.equal(greedy(grown), greedy(tiny.model))


def test_phrase_ids_are_chosen_fed_back_and_expanded_as_our_own_loop_does(tiny, lease):
    lm = stir(tiny)
    vocabulary = lm.vocabulary([lease])
    for phrase in vocabulary:
        vocabulary.add([type(phrase)(phrase.ids, phrase.text, weight=2.0)])
    units = greedy(for_generate(lm, vocabulary))[0, PROMPT.shape[1] :].tolist()
    assert any(unit >= lm.static_size for unit in units)
    ours = generate(
        lm, PROMPT[0].tolist(), vocabulary, mode="atomic", ignore_eos=True,
        overshoot="allow", max_tokens=len(expand(units, vocabulary)),
    )  # fmt: skip
    assert expand(units, vocabulary) == [t for piece in ours.pieces for t in piece.ids]


def test_the_users_model_keeps_its_own_layers(tiny, lease):
    before = greedy(tiny.model)
    embeddings, head = tiny.model.get_input_embeddings(), tiny.model.get_output_embeddings()
    grown = for_generate(tiny, tiny.vocabulary([lease]))
    greedy(grown)
    assert tiny.model.get_input_embeddings() is embeddings
    assert tiny.model.get_output_embeddings() is head
    assert torch.equal(greedy(tiny.model), before)
    shared = {p.data_ptr() for p in tiny.model.parameters()}
    assert {p.data_ptr() for p in grown.parameters()} == shared


@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 3},
        {"repetition_penalty": 1.3},
        {"output_scores": True, "return_dict_in_generate": True},
    ],
    ids=["beams", "penalty", "scores"],
)
def test_generate_options_work_with_phrases(tiny, lease, options):
    grown = for_generate(stir(tiny), tiny.vocabulary([lease]))
    result = greedy(grown, **options)
    sequences = result if isinstance(result, torch.Tensor) else result.sequences
    assert sequences.shape[1] > PROMPT.shape[1]


def test_sampling_and_a_left_padded_batch_work_with_phrases(tiny, lease):
    vocabulary = tiny.vocabulary([lease])
    grown = for_generate(stir(tiny), vocabulary)
    ids = torch.tensor([[0, 0, 5, 9], [5, 9, 17, 33]])
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    torch.manual_seed(0)
    out = grown.generate(
        ids, attention_mask=mask, max_new_tokens=6, do_sample=True, top_p=0.9,
        pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    assert out.shape == (2, 10)
    assert int(out.max()) < tiny.static_size + vocabulary.size


class OnlyOwn(LogitsProcessor):
    """Gives each row of a batch a vocabulary of its own."""

    def __init__(self, allowed: list[range]) -> None:
        self.allowed = allowed

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        masked = torch.full_like(scores, float("-inf"))
        for row, ids in enumerate(self.allowed):
            masked[row, list(ids)] = scores[row, list(ids)]
        return masked


def test_a_processor_can_give_each_row_its_own_phrases(tiny):
    vocabulary = tiny.vocabulary(["quiet enjoyment", "the premises", "good repair", "the rent on"])
    first = tiny.static_size
    out = for_generate(tiny, vocabulary).generate(
        PROMPT.repeat(2, 1),
        max_new_tokens=4,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
        logits_processor=[OnlyOwn([range(first, first + 2), range(first + 2, first + 4)])],
    )[:, PROMPT.shape[1] :]
    assert set(out[0].tolist()) <= {first, first + 1}
    assert set(out[1].tolist()) <= {first + 2, first + 3}

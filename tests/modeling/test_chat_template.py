"""Chat templates without transformers: its texts, in a sandbox, with bounds."""

import pytest
from transformers import PreTrainedTokenizerFast

from conftest import make_tokenizer
from univerb.errors import PromptError
from univerb.modeling.chat_template import ChatTemplate

SPECIAL = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
TURNS = [{"role": "system", "content": "Be <brief>."}, {"role": "user", "content": "What is 'é'?"}]

CHAT_ML = """
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""
LOOPS = """{{ bos_token }}{% for m in messages %}
    {% if m.role == 'system' %}{% continue %}{% endif %}
    {{ loop.index0 }} {{ m.content | trim }}
    {% break %}
{% endfor %}
{% if tools is defined and tools %}{{ tools | tojson }}{% endif %}"""
JSON = "{{ messages | tojson }} {{ messages[1] | tojson(indent=2) }}"
GENERATION = (
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}|{% endfor %}"
)
NAMESPACE = (
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}"
    "{{ ns.n }}"
)


@pytest.mark.parametrize("source", [CHAT_ML, LOOPS, JSON, GENERATION, NAMESPACE])
def test_it_is_what_transformers_renders(source):
    theirs: PreTrainedTokenizerFast = make_tokenizer()
    theirs.bos_token = theirs.eos_token
    theirs.chat_template = source
    expected = theirs.apply_chat_template(TURNS, add_generation_prompt=True, tokenize=False)
    assert ChatTemplate(source, SPECIAL, "tiny").render(TURNS) == expected


def test_the_date_can_be_written():
    assert len(ChatTemplate("{{ strftime_now('%Y-%m-%d') }}", {}, "tiny").render(TURNS)) == 10


def test_what_a_template_refuses_is_said():
    source = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    )
    with pytest.raises(PromptError, match=r"'tiny' cannot write this: no system role\. Change"):
        ChatTemplate(source, {}, "tiny").render(TURNS)
    assert ChatTemplate(source, {}, "tiny").render(TURNS[1:]) == ""


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages",
        "{{ messages.nothing.at_all }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% include 'other' %}",
        "{{ 1 / 0 }}",
        "{% for i in range(100000) %}{{ 'a' * 1000 }}{% endfor %}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "x" * (1 << 21),
    ],
)
def test_a_bad_template_is_an_error_that_names_the_model(source):
    with pytest.raises(PromptError, match="chat template of 'tiny'"):
        ChatTemplate(source, {}, "tiny").render(TURNS)

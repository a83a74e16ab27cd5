"""Every command and figure of the README is executed or compared here."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


COMMANDS = [line for block in blocks("sh") for line in block.splitlines() if line.strip()]


def run(command, timeout=280):
    environment = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        command, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True,
        timeout=timeout, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    return tmp_path_factory.mktemp("corpora")


def test_the_readme_is_at_most_200_lines():
    assert len(README.splitlines()) <= 200


@pytest.mark.default_model
@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_works(command, corpora):
    # Some commands use what others before them have built, in a folder that is new each time.
    command = re.sub(r"(?<![\w/])(\w+\.uv|demo-run)\b", rf"{corpora}/\1", command)
    # The installation that runs this test stands in for the one that make would build first.
    if command.startswith("make "):
        command += f" BIN={BIN} CORE=Makefile"
    done = run(command)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()


@pytest.mark.default_model
@pytest.mark.slow
@pytest.mark.parametrize("code", blocks("python"), ids=["quickstart", "wrap"])
def test_every_python_block_works(code, tmp_path):
    script = tmp_path / "block.py"
    script.write_text(code, encoding="utf-8")
    done = run(f"{sys.executable} {script}")
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip()


def test_make_targets_named_in_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"`?make (\w+)`?", README)):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def result(name):
    path = ROOT / "benchmarks/results" / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8"))


def test_every_figure_comes_from_a_committed_result():
    assert table(all_speed_rows()) in README
    assert table(encoder_rows(result("encoder/phrases"))) in README
    assert table(corpus_rows(result("corpus"), result("domain"), result("citations"))) in README


def table(rows):
    return "\n".join(["| what | figure |", "|---|---|", *(f"| {a} | {b} |" for a, b in rows)])


def corpus_rows(corpus, domain, citations):
    """The README's figures of corpora as the result files have them."""
    mining, build, request = corpus["mining"], corpus["build"], corpus["request"]
    minutes = mining["fmm_table_of_540_mb_minutes_extrapolated"]
    units = domain["law"]["all_phrases: units per base token"]
    count = citations["n-grams, one-shot"]["what"].split()[0]
    shares = [one["share_of_answers_with_a_citation"] for one in citations.values()]
    exact = sum(one["spans_equal_to_source"] for one in citations.values())
    total = sum(one["citations"] for one in citations.values())
    return [
        (
            "building index, phrases and FMM table of the acts, CPU minutes per core (2 cores)",
            f"{build['cpu_minutes_per_core']:.1f}",
        ),
        (
            "FMM table of WikiText-103's 540 MB, extrapolated, one core (the paper: 15 h)",
            f"{minutes:.0f} min",
        ),
        (
            f"warm request on {request['stored_phrases']:,} stored phrases, median: top-32 chunks, "
            "their phrases and vectors",
            f"{request['total_ms'][0]:.0f} ms",
        ),
        (
            "units per token of LawMT test, longest match: no phrases / Wikipedia's / the law's",
            " / ".join(f"{value:.2f}" for value in units.values()),
        ),
        (
            f"ASQA, {count} questions x 3 prompts: citations equal to their source",
            f"{exact} of {total}",
        ),
        (
            "the same: answers with a citation, by prompt",
            " / ".join(f"{share:.0%}" for share in shares),
        ),
    ]


def encoder_rows(report):
    """The README's figures of the shipped encoder as the result file has them."""
    text, fired = report["true_text"], report["firing"]
    ways = {own["name"]: own for own in report["writing"]}
    own = ways["profile"]
    others = [ways[name] for name in ("whole", "verify", "atomic")]
    return [
        (
            f"exact bits per byte of {report['about']['documents']} held-out texts, "
            "with phrases / bare LM",
            f"{text['exact_bits_per_byte']:.3f} / {text['bare_bits_per_byte']:.3f}",
        ),
        (
            "phrases fire at so many word starts; right, to the LM's own next tokens there",
            f"{fired['rate']:.1%}; {fired['precision'] / fired['lm_precision']:.2f}x",
        ),
        (
            f"passes per token, greedy, {own['documents']} texts",
            f"{own['steps_per_token']:.2f}",
        ),
        (
            "the same: tolerance 1 / `verify` / `atomic`",
            " / ".join(f"{one['steps_per_token']:.2f}" for one in others),
        ),
    ]


def all_speed_rows():
    whole, native = result("speed/bench"), result("speed-llamacpp/bench")
    return [*speed_rows(whole, native), *decoding_rows(result("decode"))]


def times(report, system, to, *workloads):
    """Median ratios of time, as a run of `univerb lab speed` has them."""
    found = []
    for name in workloads:
        systems = {own["system"]: own for own in report["workloads"][name]["systems"]}
        found.append(systems[system]["ratios"][to]["median"])
    return " / ".join(f"{ratio:.2f}x" for ratio in found)


def speed_rows(whole, native):
    """The README's figures of whole requests as the result files have them."""
    everywhere = ("wikitext", "law", "answers")
    return [
        (
            "`unfold` to HF `generate`: Wikipedia / law / answers from three documents",
            times(whole, "univerb-torch-unfold", "hf", *everywhere),
        ),
        (
            "`verify`, the LM's own text, to HF `generate`; HF prompt lookup",
            f"{times(whole, 'univerb-torch-verify', 'hf', *everywhere)}; "
            f"{times(whole, 'hf-prompt-lookup', 'hf', *everywhere)}",
        ),
        (
            "`--engine llamacpp`, `atomic`, to HF `generate`",
            times(whole, "univerb-llamacpp-atomic", "hf", *everywhere),
        ),
        (
            "without phrases, to plain llama.cpp; `atomic`",
            f"{times(native, 'univerb-llamacpp-plain', 'llama.cpp', *everywhere)}; "
            f"{times(native, 'univerb-llamacpp-atomic', 'llama.cpp', *everywhere)}",
        ),
    ]


def decoding_rows(report):
    """The README's figures of decoding as the result file has them."""
    ratios, verify = report["overhead"]["ratios"], report["verify"]
    sharing = report["encode"]["speedup_of_sharing"]
    times = [f"{ratios[f'atomic, P = {n}'][0]:.2f}x" for n in (0, 1_000, 10_000, 65_000)]
    shared, padded = sharing["unique by length"][0], sharing["padded"][0]
    return [
        (
            "time per step to HF `generate`, P = 0 / 1,000 / 10,000 / 65,000",
            " / ".join(times),
        ),
        (
            "encoding with shared prefixes, to unique phrases by length / to padded batches",
            f"{shared:.1f}x / {padded:.1f}x faster",
        ),
        (
            "`verify` = plain greedy, WikiText-103 prefixes of 128 tokens",
            f"{verify['identical']} of {verify['of']}",
        ),
    ]

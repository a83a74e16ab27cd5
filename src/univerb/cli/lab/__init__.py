"""`univerb lab`: what measures and reproduces."""

import typer

from univerb.cli.verbs import add_verbs

lab = typer.Typer(
    name="lab", help="Measure models and reproduce the paper's tables.", no_args_is_help=True
)


@lab.callback()
def _root() -> None:
    """Measure models and reproduce the paper's tables."""


add_verbs(
    lab,
    __name__,
    {
        "reproduce": "Make tables of the paper for a model, beside the paper's numbers.",
        "data": "List the data that measurements read, check it, and get some of it.",
        "speed": "Time univerb beside HF generate, prompt lookup and llama.cpp.",
        "phrases": "Measure on held-out text what an encoder's phrases are worth.",
        "answers": "Measure answers over documents: right ones, and what citations support.",
        "runs": "Compare training runs: settings that differ, and what came of it.",
        "pairs": "Continue prompts with phrases and without, both shown the same passages.",
        "judge": "Compare what two systems wrote, pair by pair, by a model or by people.",
        "compare": "Show what systems write for the same prompts, side by side.",
        "harness": "Run tasks of lm-evaluation-harness with phrases.",
    },
)

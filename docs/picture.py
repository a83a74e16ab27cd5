"""Draw docs/demo.svg: the default model writes with the phrases of the demo lease.

Run by `make docs`: python docs/picture.py
"""

from pathlib import Path

from rich.console import Console
from transformers.utils import logging

import univerb
from univerb.cli.console import pieces_text, stats_line
from univerb.cli.demo import SCENES

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Write with the options that the picture shows, and save it."""
    logging.disable_progress_bar()
    name, prompt = SCENES[0]
    lm = univerb.load()
    vocabulary = lm.vocabulary(univerb.read_documents(ROOT / "src/univerb/assets/demo" / name))
    result = univerb.generate(lm, prompt, vocabulary, max_tokens=60, repetition_penalty=1.1)
    console = Console(record=True, width=104, force_terminal=True, highlight=False)
    command = f'univerb generate "{prompt}" --docs {name}'
    console.print(f"[bold green]$[/] {command} --max-tokens 60 --repetition-penalty 1.1")
    console.print(pieces_text(result.pieces, prompt))
    console.print(f"[dim]{stats_line(result.stats).split(';')[0]}[/]")
    console.save_svg(str(ROOT / "docs" / "demo.svg"), title="univerb", unique_id="univerb")


if __name__ == "__main__":
    main()

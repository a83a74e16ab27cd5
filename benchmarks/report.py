"""What benchmarks share: where data lies, what machine this is, how figures are kept."""

import json
import os
import platform
from pathlib import Path
from typing import Any

import torch
import transformers

import univerb

RESULTS = Path(__file__).parent / "results"
DATA = Path(os.environ.get("UNIVERB_DATA", Path(__file__).parents[2] / "shared" / "data"))


def need_data(*names: str) -> None:
    """End with a clear line where the data is not."""
    for name in names:
        if not (DATA / name).exists():
            raise SystemExit(f"no {name} at {DATA}: set UNIVERB_DATA to the folder that has it")


def machine() -> dict[str, Any]:
    """Say what the figures were made with."""
    return {
        "univerb": univerb.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "model": "smollm2-135m, fp32",
    }


def read_report(name: str) -> dict[str, Any]:
    """Return the figures that a benchmark has kept, by section."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write_report(name: str, title: str, command: str, report: dict[str, Any]) -> None:
    """Keep figures as JSON and as a page."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    lines = [f"# {title}", "", f"Made by `{command}`.", ""]
    for section, content in report.items():
        about = ", ".join(f"{k} {v}" for k, v in content["machine"].items())
        lines += [f"## {section}", "", f"{content['what']}. {about}.", ""]
        for key, value in content.items():
            if isinstance(value, dict) and key != "machine":
                lines += ["", f"| {key} | |", "|---|---|"]
                lines += [f"| {k} | {shown(entry)} |" for k, entry in value.items()] + [""]
            elif key not in ("machine", "what"):
                lines += [f"- {key}: {shown(value)}"]
        lines += [""]
    (RESULTS / f"{name}.md").write_text("\n".join(lines), encoding="utf-8")


def shown(value: Any) -> str:  # noqa: ANN401
    """Write a figure; three numbers are a median with its range."""
    if isinstance(value, list) and len(value) == 3 and all(isinstance(v, float) for v in value):
        return f"{value[0]} ({value[1]}-{value[2]})"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)

"""A regression that uses all that a task may: shares, gather, state, dropout, idle parameters."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from univerb.training.config import TrainingConfig
from univerb.training.metrics_logger import LOG
from univerb.training.processes import Processes
from univerb.training.task import TaskLoss

SIZE = 6


def read_log(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / LOG).read_text().splitlines()]


def make_config(steps: int = 8, optimiser: dict[str, Any] | None = None, **run: Any):
    return TrainingConfig.model_validate(
        {
            "data": {"documents": ["none"]},
            "optimiser": {"rate": 0.05, "warmup": 0.2, **(optimiser or {})},
            "run": {"steps": steps, "accumulate": 2, **run},
        }
    )


class Net(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)])
        self.head = nn.Linear(SIZE, 1)
        self.sometimes = nn.Parameter(torch.ones(3))
        self.never = nn.Parameter(torch.ones(2))
        self.bias = nn.Parameter(torch.tensor(0.5))
        self.frozen = nn.Parameter(torch.ones(SIZE), requires_grad=False)
        self.dropout = nn.Dropout(dropout)

    def encode(self, rows: Tensor) -> Tensor:
        """Not `forward`: tasks call what they like."""
        for layer in self.layers:
            rows = self.dropout(layer(rows).tanh())
        return rows * self.frozen


class ToyTask:
    """Rows attract their targets and are told apart from all rows of the batch and of the last."""

    def __init__(self, processes: Processes, *, dropout: float = 0.0, batch: int = 7) -> None:
        torch.manual_seed(3)
        self.net = Net(dropout).to(processes.device)
        self.processes = processes
        self.batch = batch
        self.last = torch.zeros(0, SIZE)
        self.scores: list[float] = []
        self.spoil: Callable[[int, Tensor], Tensor] = lambda _, loss: loss
        self.indices: list[int] = []

    @property
    def modules(self) -> dict[str, nn.Module]:
        return {"net": self.net}

    def loss(self, index: int) -> TaskLoss:
        self.indices.append(index)
        draw = torch.Generator().manual_seed(1000 + index)
        rows = torch.randn(self.batch, SIZE, generator=draw)
        target = rows.sum(-1).sin()
        own = self.processes.share(self.batch)
        mine = slice(own.start, own.stop)
        encoded = self.net.encode(rows[mine])
        pool = self.processes.gather(encoded)
        others = torch.cat([pool, self.last])
        error = (self.net.head(encoded)[:, 0] + self.net.bias - target[mine]) ** 2
        apart = (encoded @ others.T).logsumexp(-1)
        total = (error + 0.1 * apart).sum() / self.batch
        terms = {"error": float(error.detach().sum()) / self.batch, "phrase_accuracy": 0.0}
        if index % 3 == 0:
            extra = (self.net.sometimes.sum() * encoded.mean(-1)).sum() / self.batch
            total = total + extra
            terms["extra"] = float(extra.detach())
        self.last = pool.detach()
        return TaskLoss(self.spoil(index, total), terms, len(own))

    def state_dict(self) -> dict[str, Tensor]:
        return {"last": self.last}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.last = state["last"]

    def validate(self) -> dict[str, float]:
        torch.rand(3)  # must leave no trace
        if self.scores:
            return {"score": self.scores.pop(0)}
        rows = torch.randn(16, SIZE, generator=torch.Generator().manual_seed(7))
        value = self.net.head(self.net.encode(rows))[:, 0] + self.net.bias
        return {"score": float(((value - rows.sum(-1).sin()) ** 2).mean())}

    def export(self, folder: Path, step: int) -> None:
        folder.mkdir(exist_ok=True)
        state = {n: t.detach().contiguous() for n, t in self.net.state_dict().items()}
        save_file(state, folder / "net.safetensors")
        (folder / "step").write_text(str(step))

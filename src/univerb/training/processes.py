"""The processes of a run: who does which part of the work, and what they tell each other.

Every process computes a share of each loss. Values are summed; rows of vectors are put together by
`gather`, whose gradient goes back to the process that computed the row.
"""

import os
from collections.abc import Mapping
from typing import NamedTuple, Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import FunctionCtx


class _Layout(NamedTuple):
    """How many rows each process has, and between whom they are exchanged."""

    counts: list[int]
    rank: int
    group: dist.ProcessGroup


class _Gather(torch.autograd.Function):
    """All rows on every process; back goes the sum of what all processes do with a row."""

    @staticmethod
    def forward(ctx: FunctionCtx, rows: Tensor, layout: _Layout) -> Tensor:
        ctx.layout = layout  # type: ignore[attr-defined]
        longest = max(layout.counts)
        padded = rows.new_zeros(longest, *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in layout.counts]
        dist.all_gather(parts, padded, group=layout.group)
        return torch.cat([part[:n] for part, n in zip(parts, layout.counts, strict=True)])

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, None]:
        layout: _Layout = ctx.layout  # type: ignore[attr-defined]
        whole = grads[0].contiguous().clone()
        dist.all_reduce(whole, group=layout.group)
        begin = sum(layout.counts[: layout.rank])
        return whole[begin : begin + layout.counts[layout.rank]], None


class Processes:
    """This process and the others."""

    def __init__(
        self, rank: int, size: int, device: torch.device, group: dist.ProcessGroup | None = None
    ) -> None:
        self.rank = rank
        self.size = size
        self.device = device
        self._group = group

    @classmethod
    def single(cls, device: str | None = None) -> Self:
        """Work alone, on a GPU if there is one and no device is named."""
        return cls(0, 1, torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu")))

    @classmethod
    def from_environment(cls, *, on_cpu: bool = False) -> Self:
        """Join the processes that torchrun started, or work alone where it did not.

        Args:
            on_cpu: Leave a GPU alone also if there is one.

        Returns:
            The processes of this run.
        """
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return cls.single("cpu" if on_cpu else None)
        device = torch.device("cpu")
        if torch.cuda.is_available() and not on_cpu:
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        # A group of its own: the backward pass mixes its exchange with that of the gradients, in
        # an order that need not be the same everywhere.
        group = dist.new_group()
        return cls(dist.get_rank(), dist.get_world_size(), device, group)

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes and shows."""
        return self.rank == 0

    def share(self, n: int) -> range:
        """Return this process's part of `n` things; parts differ by at most one."""
        return range(n * self.rank // self.size, n * (self.rank + 1) // self.size)

    def gather(self, rows: Tensor) -> Tensor:
        """Put the rows of all processes together.

        The backward pass is an exchange too: if the rows have a gradient on one process, the loss
        of every process must depend on the result.

        Args:
            rows: (n, ...) of this process; n may differ between processes, the rest may not.

        Returns:
            (N, ...) in the order of ranks, the same on every process.
        """
        if self._group is None:
            return rows
        mine = torch.tensor([len(rows), int(rows.requires_grad)], device=self.device)
        known = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(known, mine, group=self._group)
        told = torch.stack(known).tolist()
        if torch.is_grad_enabled() and any(has_grad for _, has_grad in told):
            # A process without rows of its own still has to take part in the backward pass.
            rows = rows if rows.requires_grad else rows.detach().requires_grad_()
        layout = _Layout([count for count, _ in told], self.rank, self._group)
        result: Tensor = _Gather.apply(rows, layout)  # type: ignore[no-untyped-call]
        return result

    def total(self, values: Mapping[str, float]) -> dict[str, float]:
        """Sum values over processes; all of them must give the same names."""
        if self._group is None:
            return dict(values)
        # Sorted: the same name in the same place everywhere.
        names = sorted(values)
        sums = torch.tensor([values[n] for n in names], dtype=torch.float64, device=self.device)
        dist.all_reduce(sums, group=self._group)
        found = dict(zip(names, sums.tolist(), strict=True))
        return {name: found[name] for name in values}

    def first(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the values of the first process, so that all decide alike."""
        return self.total({n: v if self.is_first else 0.0 for n, v in values.items()})

    def barrier(self) -> None:
        """Wait for the others."""
        if self._group is not None:
            dist.barrier(group=self._group)

    def close(self) -> None:
        """Leave the others."""
        if self._group is not None:
            dist.destroy_process_group()
            self._group = None

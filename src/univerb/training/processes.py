"""The processes of a run: who does which share of the work, and how results are exchanged.

Every process computes a share of each loss. Values are summed by `all_reduce`; rows of vectors are
put together by `gather`, whose gradient goes back to the process that computed the row.
"""

import os
from collections.abc import Mapping
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor


class _Gather(torch.autograd.Function):
    """All rows on every process; the gradient of a row is summed over processes."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: list[int], rank: int, group: Any) -> Tensor:  # noqa: ANN401
        begin = sum(counts[:rank])
        ctx.mine, ctx.group = slice(begin, begin + counts[rank]), group
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded, group=group)
        return torch.cat([part[:n] for part, n in zip(parts, counts, strict=True)])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:  # noqa: ANN401
        total = grads[0].contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        return total[ctx.mine], None, None, None


class Processes:
    """This process among those of the run."""

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
        """Join the processes that torchrun started, or work alone; `on_cpu` ignores GPUs."""
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return cls.single("cpu" if on_cpu else None)
        device = torch.device("cpu")
        if torch.cuda.is_available() and not on_cpu:
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        # A group of its own: the backward pass interleaves these exchanges with those of the
        # gradients, in an order that need not be the same everywhere.
        group = dist.new_group()
        return cls(dist.get_rank(), dist.get_world_size(), device, group)

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes and shows."""
        return self.rank == 0

    def share(self, n: int) -> range:
        """Return this process's part of `n` items; parts differ by at most one."""
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
        every = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(every, mine, group=self._group)
        counts, has_grad = torch.stack(every).T.tolist()
        if torch.is_grad_enabled() and any(has_grad):
            # A process without rows still has to take part in the backward pass.
            rows = rows if rows.requires_grad else rows.detach().requires_grad_()
        gathered: Tensor = _Gather.apply(rows, counts, self.rank, self._group)  # type: ignore[no-untyped-call]
        return gathered

    def all_reduce(self, values: Mapping[str, float]) -> dict[str, float]:
        """Sum values over processes; all of them must have the same names."""
        if self._group is None:
            return dict(values)
        # Sorted: the same order of names everywhere.
        names = sorted(values)
        sums = torch.tensor([values[n] for n in names], dtype=torch.float64, device=self.device)
        dist.all_reduce(sums, group=self._group)
        totals = dict(zip(names, sums.tolist(), strict=True))
        return {name: totals[name] for name in values}

    def broadcast(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the values of the first process, so that all decide alike."""
        return self.all_reduce({n: v if self.is_first else 0.0 for n, v in values.items()})

    def barrier(self) -> None:
        """Wait for all processes."""
        if self._group is not None:
            dist.barrier(group=self._group)

    def close(self) -> None:
        """Leave the group."""
        if self._group is not None:
            dist.destroy_process_group()
            self._group = None

"""Modules that several processes train together, through DDP or FSDP2.

Both act when the module that they wrap is called. A task calls parts of its modules, and not only
their `forward`; so all of them become one module, and the task's work is done inside its forward.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from univerb.training.processes import Processes

_SMALL = 16
"""Numbers of a parameter that counts as small."""


class _AllModules(nn.Module):
    """All that is trained as one module, whose forward is a function that is passed to it."""

    def __init__(self, modules: dict[str, nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleDict(modules)

    def forward(self, work: Callable[[], Any]) -> Any:  # noqa: ANN401
        return work()


class ParameterGroup(NamedTuple):
    """Parameters that one optimiser call takes."""

    params: list[nn.Parameter]
    is_small: bool
    """Whether each is a few numbers, such as a bias, and not a matrix or a vector of features."""


class ParallelModules:
    """Modules whose gradients are the sum over processes (not the mean, as DDP and FSDP give)."""

    def __init__(
        self, modules: dict[str, nn.Module], processes: Processes, parallel: Literal["ddp", "fsdp"]
    ) -> None:
        self.plain = _AllModules(modules)
        self._wrapped: nn.Module = self.plain
        self._processes = processes
        self._is_sharded = processes.size > 1 and parallel == "fsdp"
        if self._is_sharded:
            _shard(self.plain, processes)
        elif processes.size > 1:
            # Not every micro-batch reaches every parameter.
            self._wrapped = nn.parallel.DistributedDataParallel(
                self.plain, find_unused_parameters=True
            )

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return what trains, by name, in the order of names."""
        named = self.plain.parts.named_parameters()
        return dict(sorted((name, p) for name, p in named if p.requires_grad))

    def groups(self) -> list[ParameterGroup]:
        """Return what trains in groups that one optimiser call can take: sharded or not."""
        split: dict[tuple[bool, bool], list[nn.Parameter]] = defaultdict(list)
        for parameter in self.parameters().values():
            is_small = parameter.numel() <= _SMALL
            split[isinstance(parameter, DTensor), is_small].append(parameter)
        return [ParameterGroup(group, is_small) for (_, is_small), group in split.items()]

    def run(self, work: Callable[[], Any], *, train: bool = True) -> Any:  # noqa: ANN401
        """Return the result of a task's function, called where it can use the modules.

        With `train` a backward pass follows, from the tensors in a tuple or dict that it returns.
        """
        result = (self._wrapped if train else self.plain)(work)
        if self._is_sharded and not train:
            # FSDP frees the gathered parameters in the backward pass, which does not come.
            for module in self.plain.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()
        return result

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of this process's share of a loss."""
        # DDP and FSDP divide by the number of processes.
        (loss * self._processes.size).backward()  # type: ignore[no-untyped-call]

    def exchange_gradients(self, is_wanted: bool) -> AbstractContextManager[None]:
        """Exchange gradients in the backward passes inside this context, or only add them up."""
        if self._is_sharded:
            self.plain.set_requires_gradient_sync(is_wanted)  # type: ignore[operator]
        elif not is_wanted and isinstance(self._wrapped, nn.parallel.DistributedDataParallel):
            return self._wrapped.no_sync()
        return nullcontext()

    def clip(self, limit: float) -> float:
        """Scale the gradients so that their norm is at most `limit`, and return what it was."""
        norms = []
        for group in self.groups():
            grads = [p.grad for p in group.params if p.grad is not None]
            if self._is_sharded and not isinstance(group.params[0], DTensor):
                # What FSDP does for the parameters that it shards.
                for grad in grads:
                    dist.all_reduce(grad)
                    grad.div_(self._processes.size)
            # Without gradients it is a zero on the CPU.
            norms.append(full_tensor(nn.utils.get_total_norm(grads)).to(self._processes.device))
        norm = float(torch.stack(norms).norm())
        for parameter in self.parameters().values():
            if norm > limit and parameter.grad is not None:
                parameter.grad.mul_(limit / (norm + 1e-6))
        return norm

    @contextmanager
    def full_params(self) -> Iterator[None]:
        """Show every parameter as a plain tensor, for a task that writes its modules to disk."""
        sharded = [
            (module, name, parameter)
            for module in self.plain.modules()
            for name, parameter in module.named_parameters(recurse=False)
            if isinstance(parameter, DTensor)
        ]
        for module, name, parameter in sharded:
            full = full_tensor(parameter.detach())
            module._parameters[name] = nn.Parameter(full, requires_grad=parameter.requires_grad)
        try:
            yield
        finally:
            for module, name, parameter in sharded:
                module._parameters[name] = parameter


def full_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor without its sharding; a collective call, if it is sharded."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def copy_into(target: Tensor, source: Tensor) -> None:
    """Fill a tensor, which may be sharded, from a full one."""
    if isinstance(target, DTensor):
        source = distribute_tensor(
            source.to(target.device), target.device_mesh, target.placements, src_data_rank=None
        )
    with torch.no_grad():
        target.copy_(source)


def _shard(modules: nn.Module, processes: Processes) -> None:
    """Shard the parameters: a group for each layer, one for all the rest."""
    mesh = init_device_mesh(processes.device.type, (processes.size,))
    # FSDP takes no scalars, such as the heads' bias.
    scalars = {p for p in modules.parameters() if p.dim() == 0}
    for layer in list(_layers(modules)):
        fully_shard(layer, mesh=mesh, ignored_params=scalars)
    fully_shard(modules, mesh=mesh, ignored_params=scalars)


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        if isinstance(module, nn.ModuleList) and any(p.dim() for p in child.parameters()):
            yield child
        else:
            yield from _layers(child)

# SPDX-License-Identifier: Apache-2.0
"""Gradients that cross the network in few bits, with error feedback.

A wire format alone (``Options(wire_dtype=...)``) forgets what each encoding takes away. Here that is kept, by the ranks that encode,
and added to the next step's gradients, so that it is late instead of lost. It needs to know which gradient is which, which only a
communication hook of DistributedDataParallel does.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from quoit._C import Options, ProcessGroupQuoit
from quoit._groups import unwrapped

_FORMATS = ("bf16", "fp16", "int8")


def _exchange(state: "CompressHook", bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The function that DistributedDataParallel calls for each bucket."""
    return state.exchange(bucket)


class CompressHook:
    """Average the gradients of ``model``, in ``wire_dtype`` between hosts, with error feedback; made on all ranks alike::

        model = DistributedDataParallel(net)
        hook = quoit.CompressHook(model, wire_dtype="int8")
        torch.save({"model": model.state_dict(), "hook": hook.state_dict()}, f"checkpoint.{dist.get_rank()}")

    It registers itself with ``model``, and makes a group of the ranks of the model's group for itself. What it keeps is a float32
    tensor for each gradient on the ranks that encode (one a host), and differs from rank to rank. ``feedback=False`` keeps nothing.
    Gradients that are not float32 are averaged without feedback.
    """

    def __init__(self, model: DistributedDataParallel, wire_dtype: str = "int8", feedback: bool = True) -> None:
        if wire_dtype not in _FORMATS:
            raise ValueError(f"quoit.CompressHook: wire_dtype {wire_dtype!r} is not one of: {', '.join(_FORMATS)}")
        if not isinstance(model, DistributedDataParallel):
            raise TypeError(f"quoit.CompressHook: the model is a {type(model).__name__}, not a DistributedDataParallel")
        self.wire_dtype, self.feedback = wire_dtype, feedback
        ranks = dist.get_process_group_ranks(model.process_group)
        self.group = dist.new_group(ranks, backend="quoit", pg_options=Options(wire_dtype=wire_dtype))
        self._names = {id(parameter): name for name, parameter in model.module.named_parameters()}
        # What each gradient is owed. Those of a bucket are views of one tensor, in the bucket's order, as long as buckets stay as they are.
        self._owed: dict[str, torch.Tensor] = {}
        self._buckets: dict[int, tuple[tuple[str, ...], torch.Tensor]] = {}
        model.register_comm_hook(self, _exchange)

    def _backend(self) -> ProcessGroupQuoit:
        backend = unwrapped(self.group._get_backend(torch.device("cpu")))
        assert isinstance(backend, ProcessGroupQuoit)
        return backend

    def _residual(self, bucket: GradBucket) -> torch.Tensor:
        """What the bucket's gradients are owed, in its order. DistributedDataParallel makes its buckets anew in the second step: what
        each gradient is owed goes along to its new bucket."""
        names = tuple(self._names[id(parameter)] for parameter in bucket.parameters())
        known = self._buckets.get(bucket.index())
        if known is not None and known[0] == names:
            return known[1]
        gradients = bucket.gradients()
        flat = torch.zeros(sum(gradient.numel() for gradient in gradients))
        begin = 0
        for name, gradient in zip(names, gradients):
            part = flat[begin : begin + gradient.numel()]
            if name in self._owed:
                part.copy_(self._owed[name].view(-1))
            self._owed[name] = part
            begin += gradient.numel()
        self._buckets[bucket.index()] = (names, flat)
        return flat

    def exchange(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Average a bucket over all ranks, with what it is owed."""
        buffer = bucket.buffer().div_(self.group.size())
        if self.feedback and buffer.dtype == torch.float32:
            residual = self._residual(bucket)
            work = self._backend()._allreduce_residual(buffer.add_(residual), residual)
        else:
            work = dist.all_reduce(buffer, group=self.group, async_op=True)

        def result(future: torch.futures.Future[Any]) -> torch.Tensor:
            value: torch.Tensor = future.value()[0]
            return value

        return work.get_future().then(result)

    def state_dict(self) -> dict[str, Any]:
        """What this rank's gradients are owed, by the names of their parameters: each rank saves its own."""
        return {"wire_dtype": self.wire_dtype, "residuals": {name: owed.clone() for name, owed in self._owed.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with what ``state_dict`` gave. Names that the model lacks are an error, parameters that it lacks are owed nothing."""
        unknown = sorted(set(state["residuals"]) - set(self._names.values()))
        if unknown:
            raise ValueError(f"quoit.CompressHook: the model has no parameters {', '.join(unknown)}")
        self._owed = {name: owed.detach().to(torch.float32).clone() for name, owed in state["residuals"].items()}
        self._buckets.clear()

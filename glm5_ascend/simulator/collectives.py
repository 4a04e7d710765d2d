"""The two variable-size collectives that expert parallel needs and gloo's communicator lacks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator


class Glm5CpuCommunicator(CpuCommunicator):  # type: ignore[misc]
    """``CpuCommunicator`` with ``all_gatherv`` and ``reduce_scatterv`` along axis 0."""

    def all_gatherv(
        self,
        input_: torch.Tensor | list[torch.Tensor],
        dim: int = 0,
        sizes: list[int] | None = None,
    ) -> Any:
        """Concatenate the ranks' rows; rank r contributes ``sizes[r]`` (all equal if None)."""
        if isinstance(input_, list | tuple):
            return [self._gather_rows(tensor, dim, sizes) for tensor in input_]
        return self._gather_rows(input_, dim, sizes)

    def reduce_scatterv(
        self, input_: torch.Tensor, dim: int = 0, sizes: list[int] | None = None
    ) -> torch.Tensor:
        """Sum over ranks; each keeps its ``sizes[rank]`` rows. Gloo adds in rank order."""
        counts = self._counts(input_.shape[0] // self.world_size, dim, sizes)
        if sum(counts) != input_.shape[0]:
            raise ValueError(f"{input_.shape[0]} rows cannot be split into {counts}")
        total = input_.clone()
        dist.all_reduce(total, group=self.device_group)
        start = sum(counts[: self.rank_in_group])
        return total[start : start + counts[self.rank_in_group]].contiguous()

    def _counts(self, each: int, dim: int, sizes: list[int] | None) -> list[int]:
        if dim != 0:
            raise NotImplementedError(f"only axis 0 can be split by rank, not axis {dim}")
        return list(sizes) if sizes is not None else [each] * self.world_size

    def _gather_rows(self, tensor: torch.Tensor, dim: int, sizes: list[int] | None) -> torch.Tensor:
        counts = self._counts(tensor.shape[0], dim, sizes)
        padded = tensor.new_zeros(max(counts), *tensor.shape[1:])
        padded[: tensor.shape[0]] = tensor
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded, group=self.device_group)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

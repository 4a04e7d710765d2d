"""The routed experts of one layer, read in groups: memory does not grow with their number."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from glm5_ascend.simulator.offline_weights import WeightStore

# Of one group's weights in F32, and of rows computed at once.
_GROUP_BYTES = 1 << 30
_ROWS = 4096
_F32_BYTES = 4


@dataclass(frozen=True, slots=True)
class StreamedExperts:
    """Experts below ``prefix`` (``…mlp.experts``) of ``store``, ``group`` of them in memory."""

    store: WeightStore
    prefix: str
    group: int

    @classmethod
    def below(cls, store: WeightStore, prefix: str) -> StreamedExperts:
        """Choose the group so that its weights stay below 1 GiB in F32, one expert at least."""
        config = store.config
        weights = 3 * config.hidden_size * config.moe_intermediate_size
        return cls(store, prefix, max(1, _GROUP_BYTES // (_F32_BYTES * weights)))

    def __call__(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """Σ weight · expert(x), [T, H], of ``weights`` and ``ids`` [T, top_k]; groups are added in
        the order of their experts."""
        out = torch.zeros_like(x)
        count = self.store.config.n_routed_experts
        for start in range(0, count, self.group):
            some = range(start, min(start + self.group, count))
            is_mine = (ids >= some.start) & (ids < some.stop)
            rows = is_mine.any(1).nonzero().squeeze(1)
            if rows.numel() == 0:
                continue
            experts = self.store.experts(self.prefix, some)
            for part in torch.split(rows, _ROWS):
                local = torch.where(is_mine[part], ids[part] - start, -1)
                out[part] += experts(x[part], weights[part], local)
        return out

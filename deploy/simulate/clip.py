"""A plan's layout made small enough for the processes of one machine."""

from __future__ import annotations

from glm5_ascend.config import Glm5Config
from glm5_ascend.deploy.layout import Group

PROCESSES = 4


def clip(group: Group, config: Glm5Config, expert_parallel: bool, most: int = PROCESSES) -> Group:
    """The largest layout of at most ``most`` ranks that is parallel in the same directions.

    TP divides the plan's TP, and the heads and widths of the model; with expert parallelism DP x TP
    divides its experts. Directions that the plan has count most, then ranks, then DP. Pipelines
    and context parallelism, which the CPU engine has not, are left out.
    """
    widths = (config.num_attention_heads, config.intermediate_size, config.moe_intermediate_size)
    found = []
    for tp in range(1, most + 1):
        if group.tp % tp or any(width % tp for width in widths):
            continue
        for dp in range(1, min(group.dp, most // tp) + 1):
            if expert_parallel and config.n_routed_experts % (dp * tp):
                continue
            found.append(((dp > 1) + (tp > 1), dp * tp, dp, tp))
    _, _, dp, tp = max(found)
    return Group(dp, tp)


def describe(group: Group, clipped: Group, expert_parallel: bool) -> str:
    """``dp8tp4 (EP 32) on 32 dies -> dp2tp2 (EP 4) in 4 processes``."""

    def sizes(one: Group) -> str:
        return f"{one} (EP {one.ep})" if expert_parallel else f"{one}"

    dies = "1 die" if group.dies == 1 else f"{group.dies} dies"
    ranks = "1 process" if clipped.dies == 1 else f"{clipped.dies} processes"
    return f"{sizes(group)} on {dies} -> {sizes(clipped)} in {ranks}"

"""Plans of every kind, as ``plan`` would write them, and what the sites of them look like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from glm5_ascend.deploy.plan_file import Plan, RolePlan

ENV = {"HCCL_OP_EXPANSION_MODE": "AIV", "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"}
MTP = {"method": "deepseek_mtp", "num_speculative_tokens": 3, "enforce_eager": True}
GRAPH = {"cudagraph_mode": "FULL_DECODE_ONLY"}


def role(kind: str, nodes: tuple[int, ...], layout: str, buffer: int, **changes: Any) -> RolePlan:
    """A role with the flags that a plan gives it."""
    flags: dict[str, Any] = {
        "enable-expert-parallel": True,
        "max-model-len": 65_536,
        "max-num-seqs": 8,
        "max-num-batched-tokens": 4096,
        "gpu-memory-utilization": 0.92,
        "trust-remote-code": True,
        "quantization": "ascend",
        "speculative-config": MTP,
    }
    flags |= {"enforce-eager": True} if kind == "prefill" else {"compilation-config": GRAPH}
    extra: dict[str, Any] = {}
    if kind == "decode":
        flags["max-num-batched-tokens"] = 64
        extra = {"scheduler_config": {"recompute_scheduler_enable": True}}
    env = {**ENV, "HCCL_BUFFSIZE": str(buffer)}
    return RolePlan(kind, nodes, layout, flags | changes, env, extra)


def plan(sku: str, servers: int, *roles: RolePlan, model: str = "glm-5.2", **changes: Any) -> Plan:
    """A plan of vllm-ascend 0.30.0rc2 in W8A8."""
    settings = {"quant": "w8a8", "kv": "bf16", "release": "0.30.0rc2"} | changes
    return Plan(
        model=model, sku=sku, servers=servers, roles=roles, predicted={"tpot_ms": 40.0}, **settings
    ).check()


PLANS = {
    "mixed one node": plan(
        "a3-752t", 1, role("mixed", (0,), "dp2tp8", 400), model="glm-5.3", quant="w4a8"
    ),
    "mixed two nodes": plan("a3-752t", 2, role("mixed", (0, 1), "dp8tp4", 800)),
    "mixed two instances": plan(
        "a3-752t", 2, *(role("mixed", (n,), "dp2tp8", 400) for n in (0, 1)), quant="w4a8"
    ),
    "mixed on A2": plan("a2-313t", 4, role("mixed", (0, 1, 2, 3), "dp4tp8", 1024), model="glm-5.1"),
    "split": plan(
        "a3-752t",
        4,
        role("prefill", (0, 1), "dp4tp8", 3300),
        role("decode", (2, 3), "dp8tp4", 256),
    ),
    "two prefills": plan(
        "a3-752t",
        4,
        role("prefill", (0,), "dp1tp16", 1700),
        role("prefill", (1,), "dp1tp16", 1700),
        role("decode", (2, 3), "dp32tp1", 448),
        quant="w4a8",
    ),
    "older": plan("a3-752t", 2, role("mixed", (0, 1), "dp8tp4", 800), release="0.23.0.post1"),
}
HOSTS = ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")


def site(made: Plan) -> list[str]:
    """The flags of the site for ``render``."""
    return ["--hosts", ",".join(HOSTS[: made.servers]), "--nic", "eth0"]


def written(made: Plan, folder: Path) -> Path:
    """The plan as a file."""
    made.dump(folder / "plan.yaml")
    return folder / "plan.yaml"

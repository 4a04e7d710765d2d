"""Published verdicts on memory: what was tried, whether it ran, and what a log said.

``margin`` is the sign that the published outcome implies; ``at_least`` and ``at_most`` bound the
longest context in tokens where a source gives one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from glm5_ascend.deploy.catalogue import hardware, model
from glm5_ascend.deploy.layout import Group
from glm5_ascend.deploy.memory import Settings
from glm5_ascend.engine_releases import Release

RELEASE = Release.parse


@dataclass(frozen=True)
class Row:
    """One published configuration."""

    name: str
    model: str
    quant: str
    hw: str
    layout: str
    fits: bool
    source: str
    flags: dict[str, Any] = field(default_factory=dict)

    def settings(self) -> Settings:
        sku, group = hardware(self.hw).sku, Group.parse(self.layout)
        assert hardware(self.hw).dies >= group.dies, self.name
        return Settings(model(self.model), sku, group, self.quant, **self.flags)


DECODE: dict[str, Any] = {"role": "decode", "buffsize": 256, "max_num_batched_tokens": 164}
PREFILL: dict[str, Any] = {"role": "prefill", "graph": False, "dsa_cp": True, "buffsize": 400}
MILLION = 1_000_000

VERDICTS = [
    Row("F01", "glm-5.1", "w8a8", "a2-313t:1", "dp1tp8", False, "vllm-ascend #8817"),
    Row(
        *("F02", "glm-5.1", "w8a8", "a2-313t:2", "dp2tp8", False, "vllm-ascend #9099"),
        {"utilisation": 0.9, "max_model_len": 202752, "max_num_seqs": 64},
    ),
    Row(
        *("F03", "glm-5.1", "w8a8", "a2-313t:2", "dp2tp8", True, "vllm-ascend CI"),
        {"utilisation": 0.95, "max_model_len": 38000, "max_num_seqs": 64},
    ),
    Row(
        *("F05", "glm-5.2", "w4a8", "a2-313t:2", "dp2tp8", True, "vllm-ascend #10783"),
        {"utilisation": 0.95, "max_model_len": 131072, "max_num_seqs": 4, "draft_tokens": 5},
    ),
    Row(
        *("F06", "glm-5.2", "bf16", "a2-313t:4", "dp4tp8", False, "vllm-ascend #10918"),
        {"utilisation": 0.95, "max_model_len": 200_000, "release": RELEASE("0.22.1rc1")},
    ),
    Row(
        *("F07", "glm-5.1", "bf16", "a2-313t:4", "dp4tp8", True, "vllm-ascend #9142"),
        {"utilisation": 0.95, "max_model_len": 19_328},
    ),
    Row("F08", "glm-5.1", "bf16", "a2-313t:5", "dp5tp8", False, "vllm-ascend #9142"),
    Row(
        *("F10", "glm-5.2", "w4a8", "a3-560t:1", "dp2tp8", True, "vllm-ascend docs"),
        {"kv": "li-c8", "max_model_len": 135_000, "max_num_seqs": 12, "dsa_cp": True}
        | {"max_num_batched_tokens": 8192},
    ),
    Row(
        *("F11", "glm-5.2", "w4a8", "a3-560t:2", "dp4tp8", True, "vllm-ascend docs"),
        {"kv": "li-c8", "max_model_len": 66_000, "utilisation": 0.9, "buffsize": 400}
        | {"max_num_batched_tokens": 8192},
    ),
    Row(
        *("F12", "glm-5.2", "w4a8", "a3-560t:1", "dp1tp16dcp16", True, "vllm-ascend docs"),
        {"kv": "li-c8", "max_model_len": MILLION, "utilisation": 0.8, "max_num_seqs": 32}
        | {"max_num_batched_tokens": 16384, "dsa_cp": True, "buffsize": 768},
    ),
    Row(
        *("F14 prefill", "glm-5.2", "w4a8", "a3-560t:2", "dp4tp8dcp8", True, "vllm-ascend CI"),
        PREFILL
        | {"kv": "li-c8", "max_model_len": MILLION, "utilisation": 0.75}
        | {"max_num_batched_tokens": 16384, "max_num_seqs": 8, "buffsize": 768},
    ),
    Row(
        *("F14 decode", "glm-5.2", "w4a8", "a3-560t:2", "dp4tp8dcp8", True, "vllm-ascend CI"),
        DECODE
        | {"kv": "li-c8", "max_model_len": MILLION, "utilisation": 0.93}
        | {"max_num_seqs": 32},
    ),
    Row(
        *("F16", "glm-5", "w8a8", "a3-560t:1", "dp1tp16", True, "vllm-ascend docs"),
        {"utilisation": 0.95, "max_model_len": 40_960, "max_num_seqs": 8},
    ),
    Row(
        *("F17", "glm-5", "w8a8", "a3-560t:1", "dp1tp16dcp16", True, "vllm-ascend #12839"),
        {"utilisation": 0.96, "max_model_len": 66_600, "max_num_seqs": 4},
    ),
    Row(
        *("F18", "glm-5", "w8a8", "a3-560t:1", "dp1tp16dcp16", False, "vllm-ascend #12839"),
        {"utilisation": 0.96, "max_model_len": 66_600, "max_num_seqs": 4}
        | {"dsa_cp": True, "kv_both": True},
    ),
    Row(
        *("F21", "glm-5.1", "w8a8", "a3-560t:2", "dp8tp4", True, "vllm-ascend CI"),
        {"kv": "li-c8", "max_model_len": 133_120, "max_num_seqs": 6, "dsa_cp": True}
        | {"buffsize": 400},
    ),
    Row(
        *("F21 of 32", "glm-5.1", "w8a8", "a3-560t:2", "dp8tp4", True, "vllm-ascend CI"),
        {"kv": "li-c8", "max_model_len": 133_120, "max_num_seqs": 32, "dsa_cp": True}
        | {"buffsize": 400},
    ),
    Row(
        *("F23", "glm-5.1", "w8a8", "a3-560t:2", "dp32tp1", True, "vllm-ascend CI"),
        DECODE | {"max_model_len": 18_432, "max_num_seqs": 32},
    ),
    Row(
        *("F24", "glm-5.1", "w8a8", "a3-560t:2", "dp32tp1", False, "arithmetic"),
        DECODE | {"max_model_len": 131_072, "max_num_seqs": 32},
    ),
    Row(
        *("F24 both", "glm-5.1", "w8a8", "a3-560t:2", "dp32tp1", True, "arithmetic"),
        DECODE | {"max_model_len": 131_072, "max_num_seqs": 32, "kv": "both"},
    ),
    Row(
        *("F25", "glm-5.1", "w8a8", "a3-560t:2", "dp4tp8", True, "vllm-ascend CI"),
        PREFILL | {"kv": "both", "max_model_len": 202_752, "max_num_batched_tokens": 8192},
    ),
    Row(
        *("F32", "deepseek-v3.2", "w8a8", "a3-560t:1", "dp2tp8", False, "vllm-ascend #7793"),
        {"utilisation": 0.98, "buffsize": 1024, "max_model_len": 8192},
    ),
    Row(
        *("F32 fixed", "deepseek-v3.2", "w8a8", "a3-560t:1", "dp2tp8", True, "vllm-ascend #7793"),
        {"utilisation": 0.93, "buffsize": 256, "max_model_len": 8192},
    ),
    Row("F37", "glm-5.1", "bf16", "a3-560t:1", "dp1tp16", False, "vllm-ascend docs"),
    Row("F39", "glm-5.2", "w8a8", "a2-313t:1", "dp1tp8", False, "sglang docs"),
]

# Rows of the same list whose cause this model does not describe.
NOT_MODELLED = {
    "F15": "a kernel crashes; refused by a rule of its own, no bill is involved",
    "F19": "sglang: another split of the die, mem-fraction-static",
    "F27": "out of memory after 33 hours: a leak",
    "F28": "GLM-5.3-Flash is another architecture; its admission is at fault",
    "F29": "GLM-5.3-Flash is another architecture",
    "F30": "GLM-4.6 is another architecture",
    "F34": "the cause is not published",
    "F35": "W4A4 on the 950 series is no format of this project",
    "F36": "sglang: another split of the die",
    "F40": "sglang: another split of the die",
}

# Logged GiB of weights per die.
WEIGHTS = [
    (25.0, "glm-5.1", "w8a8", "dp2tp16", {}, "vllm-ascend #9422, before"),
    (
        *(35.97, "glm-5.1", "w8a8", "dp2tp16"),
        {"dsa_cp": True, "release": RELEASE("0.20.2rc1")},
        "vllm-ascend #9422, after",
    ),
    (49.0, "glm-5", "w8a8", "dp1tp16dcp16", {}, "vllm-ascend #12839"),
    (
        *(59.0, "glm-5", "w8a8", "dp1tp16dcp16"),
        {"dsa_cp": True, "kv_both": True},
        "vllm-ascend #12839 with a connector",
    ),
    (30.16, "glm-5.1", "w4a8", "dp2tp8", {}, "vllm-ascend #10700"),
    (54.7, "glm-5.2", "w4a8", "dp1tp8", {}, "vllm-ascend #12779"),
    (44.16, "deepseek-v3", "w8a8", "dp4tp4", {"draft_tokens": 0}, "vllm-ascend #2191"),
]

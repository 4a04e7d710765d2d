"""Rules about ``quant_model_description.json`` and the schemes that it gives."""

from __future__ import annotations

from glm5_ascend.verify.rule import (
    AGAIN,
    RAN,
    READ,
    REPAIR,
    Rule,
    Verdict,
    always,
    warn,
)

DESCRIPTION: dict[str, Rule] = {
    "description-missing": Rule(
        "int8 weights without quant_model_description.json",
        "copy the description of the checkpoint; repair writes one from the tensors",
        always("ValueError: ModelSlim Quantization Config Not Found"),
        mendable=True,
    ),
    "undescribed-fused": Rule(
        "module of a fused layer that the description leaves out",
        REPAIR,
        always("KeyError while the model is built"),
        mendable=True,
    ),
    "undescribed-int8": Rule(
        "int8 weight that the description leaves out",
        REPAIR,
        (
            Verdict("error", "KeyError while the model is built", RAN, until=(0, 26)),
            Verdict(
                "error",
                "takes it for float: KeyError of its scale, or codes copied into BF16 silently",
                RAN,
                since=(0, 27),
            ),
        ),
        mendable=True,
    ),
    "undescribed-linear": Rule(
        "float module that the description leaves out",
        REPAIR,
        (Verdict("error", "KeyError while the model is built", READ, until=(0, 26)),),
        mendable=True,
    ),
    "undescribed-other": Rule(
        "tensor that the description leaves out",
        REPAIR,
        warn("does not look it up, but tools that follow the description miss it", READ),
        mendable=True,
    ),
    "described-unknown": Rule(
        "description of a tensor that is not there",
        REPAIR,
        warn(
            "ignores it; the description belongs to another checkpoint, or a tensor is lost", READ
        ),
        mendable=True,
    ),
    "description-value": Rule(
        "description", f"copy the file again, or {AGAIN}", always("cannot use it", READ)
    ),
    "description-part": Rule(
        "scheme of a part that differs from its weight's",
        REPAIR,
        warn("looks at the weight's only", READ),
        mendable=True,
    ),
    "fused-mixed": Rule(
        "different schemes in a fused layer",
        AGAIN,
        always("ValueError: not all shards are quantized with same quant type, or a size mismatch"),
    ),
    "scheme-unknown": Rule(
        "scheme that the engine does not have", AGAIN, always("NotImplementedError")
    ),
    "scheme-float-only": Rule(
        "quantised module that the engine reads as float only",
        f"{AGAIN} and leave this module float",
        always("KeyError (wk, weights_proj, eh_proj) or AssertionError (router, kv_b_proj)"),
    ),
    "scheme-int4-linear": Rule(
        "int4 scheme for a linear layer",
        AGAIN,
        (
            Verdict("error", "ZeroDivisionError with one scale per channel", RAN, until=(0, 26)),
            Verdict("error", "NotImplementedError", RAN, since=(0, 27)),
        ),
    ),
    "scheme-a5": Rule(
        "scheme of the Ascend 950",
        "quantise for A2 and A3 with --scheme w8a8 or w4a8; the tensors of these modules are not"
        " checked",
        warn("runs on the 950 only", READ),
    ),
    "version-key": Rule(
        "version is not 1.0.0 beside packed int4",
        REPAIR,
        (Verdict("error", "KeyError w13_scale_bias while loading", RAN, until=(0, 26)),),
        mendable=True,
    ),
    "group-size-missing": Rule(
        "no group_size beside int4 with one scale per channel",
        REPAIR,
        (
            Verdict(
                "error",
                "assumes groups of 256 and multiplies with uninitialised scales, without a word",
                RAN,
                until=(0, 26),
            ),
        ),
        mendable=True,
    ),
    "group-size": Rule(
        "group_size above 0 beside int4 with one scale per channel",
        REPAIR,
        (
            Verdict(
                "error",
                "loads without a word and multiplies with uninitialised scales",
                RAN,
                until=(0, 26),
            ),
            Verdict("error", "ValueError: per-group is no longer supported", RAN, since=(0, 27)),
        ),
        mendable=True,
    ),
    "int4-groups": Rule(
        "int4 with two levels of scales",
        "quantise again with one scale per channel",
        (Verdict("error", "ValueError: per-group is no longer supported", READ, since=(0, 27)),),
    ),
    "int4-version-0": Rule(
        "int4 in the layout of description version 0, one code per byte",
        "quantise again",
        (Verdict("error", "fails while loading", READ, since=(0, 27)),),
    ),
    "query-up-float": Rule(
        "q_b_proj is float beside a quantised q_a_proj",
        f"{AGAIN} with both in one scheme",
        (
            Verdict(
                "warning",
                "not known: 0.23 runs it, 0.30 fails after loading",
                RAN,
                since=(0, 24),
                until=(0, 29),
            ),
            Verdict(
                "error",
                "AttributeError weight_scale after loading (npu_mla_prolog_v3)",
                RAN,
                since=(0, 30),
            ),
        ),
    ),
    "index-query-float": Rule(
        "indexer.wq_b is float beside a W8A8_DYNAMIC q_a_proj",
        "use 0.23 or 0.30, or quantise wq_b as well",
        (
            Verdict(
                "error",
                "AttributeError in the first forward pass",
                "vllm-ascend issue #15712",
                since=(0, 26),
                until=(0, 26),
            ),
            Verdict(
                "warning",
                "not known which release has the fix, pull request #15713; 0.30 has it",
                "vllm-ascend issue #15712",
                since=(0, 27),
                until=(0, 29),
            ),
        ),
    ),
    "trunk-mixed": Rule(
        "q_a_proj and q_b_proj in different int8 schemes",
        f"{AGAIN} with both static (MLAPO) or both dynamic (PROLOG_V3)",
        warn("runs neither of its fused kernels, only slower", READ),
    ),
    "static-norm-bias": Rule(
        "static attention, and no key of the description contains norm.bias",
        REPAIR,
        always("AttributeError None.data: MLAPO needs the bias that such a key switches on", READ),
        mendable=True,
    ),
    "shared-input": Rule(
        "q_a_proj and kv_a_proj_with_mqa with different input scales",
        AGAIN,
        always("keeps the one that it reads last, without a word"),
    ),
    "cache-mark": Rule(
        "mark of the int8 indexer cache",
        "use INT8_DYNAMIC on layers that own an indexer",
        warn("keeps the cache of this layer in BF16", READ),
        mendable=True,
    ),
    "cache-rotations": Rule(
        "indexer_quant_type without the tensors q_rot and k_rot that it announces",
        "marks per layer (…indexer.quant_type) are enough from 0.27 on",
        warn("makes parameters that may stay unloaded", READ),
    ),
}

"""Rules about the numbers that are stored."""

from __future__ import annotations

from glm5_ascend.verify.rule import (
    AGAIN,
    COPY,
    READ,
    Rule,
    always,
    warn,
)

VALUES: dict[str, Rule] = {
    "not-finite": Rule(
        "NaN or infinity", COPY + f", or {AGAIN}", always("gives NaN, or !!!!!", "IEEE 754")
    ),
    "scale-value": Rule(
        "scale that is not positive",
        AGAIN,
        always("loses the row, or turns its sign", "the formula"),
    ),
    "scale-rounded": Rule(
        "scale that BF16 cannot hold",
        f"{AGAIN}: codes must be computed for the scale that the engine keeps",
        warn("rounds it to BF16 while loading; up to 0.4 % error of the row", READ),
    ),
    "offset-value": Rule(
        "weight_offset is not zero", AGAIN, always("ignores it: codes are symmetric", READ)
    ),
    "scale-bias-value": Rule(
        "scale_bias is not 8 times the sum of codes and scale",
        f"{AGAIN}: bias, scale or packing is wrong, and nothing says which",
        always("adds a wrong constant to each output", "the kernel's offset arithmetic"),
    ),
    "scale-bias-split": Rule(
        "columns of scale_bias are not the 16 partial sums of the input",
        f"{AGAIN}, or serve with --enable-expert-parallel",
        warn("is right with expert parallel only, where the total counts", READ),
    ),
    "deq-scale-value": Rule(
        "deq_scale is not input_scale times weight_scale",
        AGAIN,
        always("uses it as it is", "the formula"),
    ),
    "deq-scale-rounded": Rule(
        "deq_scale was rounded to BF16",
        f"{AGAIN}; msModelSlim rounds the product",
        warn("uses it as it is: a gain error of up to 0.2 % per channel", "the formula"),
    ),
    "quant-bias-value": Rule(
        "quant_bias is not minus offset times the sum of codes",
        AGAIN,
        always("adds a wrong constant to each output", "the formula"),
    ),
    "codes-narrow": Rule(
        "int8 codes that use 4 bits only",
        f"{AGAIN}: int4 is stored two to a byte",
        warn("runs it as int8: the size of int8 with the error of int4", "the formula"),
    ),
    "codes-zero": Rule(
        "matrix of zeros",
        f"compare with the source, or {AGAIN}",
        warn("adds nothing", "the formula"),
    ),
    "mtp-embedding-value": Rule(
        "the MTP layer's embedding differs from the main one",
        AGAIN,
        warn("drafts from other vectors than the main model reads", "the model's definition"),
    ),
    "rotation-value": Rule(
        "rot.weight is not R1ᵀ diag(γ) R1",
        AGAIN,
        always("drafts from wrong states: few are accepted", "vllm-ascend pull request #7139"),
    ),
    "source-error": Rule(
        "weights far from the source",
        AGAIN,
        always("computes another model", "measured against --source"),
    ),
    "source-unlike": Rule(
        "tensor that cannot be compared with the source",
        "give the checkpoint that this one was made from",
        warn("may be right", "measured against --source"),
    ),
}

"""Rules about names, shapes and dtypes of tensors, the MTP layer and the rotation."""

from __future__ import annotations

from glm5_ascend.verify.rule import (
    AGAIN,
    RAN,
    READ,
    REPAIR,
    SILENT,
    Rule,
    Verdict,
    always,
)

TENSORS: dict[str, Rule] = {
    # Inventory
    "tensor-missing": Rule("missing tensor", f"copy all files again, or {AGAIN}", always(SILENT)),
    "scale-missing": Rule("missing scale", AGAIN, always(SILENT)),
    "scale-bias-missing": Rule(
        "missing scale_bias",
        f"{REPAIR}: it follows from codes and scales",
        always(SILENT),
        mendable=True,
    ),
    "static-missing": Rule(
        "missing tensor of a static W8A8 linear",
        f"{REPAIR} if the others are there, else {AGAIN}",
        always(SILENT),
        mendable=True,
    ),
    "tensor-unknown": Rule(
        "tensor that the model does not have",
        "remove it, or correct config.json",
        always("KeyError while loading", READ),
    ),
    "shape": Rule("shape", AGAIN, always("fails while loading")),
    "dtype": Rule("dtype", AGAIN, always("converts the numbers without a word", READ)),
    "scale-bias-columns": Rule(
        "scale_bias of a down projection in one column",
        f"{REPAIR}: 16 partial sums follow from codes and scales",
        always("fills one of 16 columns and adds the rest from uninitialised memory"),
        mendable=True,
    ),
    "scale-axis": Rule(
        "scale without its second axis", REPAIR, always("fails while loading"), mendable=True
    ),
    "int4-unpacked": Rule(
        "int4 codes that are not packed along the output axis",
        AGAIN,
        always("fails while loading: two rows share a byte, even row in the low half"),
    ),
    "int8-in-float": Rule(
        "int8 stored for a float matrix", AGAIN, always("copies codes into BF16 without a word")
    ),
    "float-in-int8": Rule(
        "float stored for a quantised matrix",
        "correct the description, or quantise the checkpoint again",
        always("cuts the values to integers without a word", READ),
    ),
    # MTP and rotation
    "mtp-absent": Rule(
        "the MTP layer that config.json announces is not stored",
        f"{REPAIR} with --source, or set num_nextn_predict_layers to 0",
        always("serves without drafts only; a draft model starts with uninitialised memory"),
        mendable=True,
    ),
    "mtp-undescribed": Rule(
        "the description leaves out the MTP layer",
        REPAIR,
        always("KeyError model.layers.N.self_attn.q_a_proj.weight once drafts are switched on"),
        mendable=True,
    ),
    "mtp-vocabulary": Rule(
        "the MTP layer lacks its copy of embedding or head",
        f"{REPAIR}, or use 0.30",
        (
            Verdict("error", "drafts from uninitialised memory without a word", RAN, until=(0, 23)),
            Verdict(
                "warning",
                "not known: 0.23 drafts from uninitialised memory, 0.30 shares the main model's",
                RAN,
                since=(0, 24),
                until=(0, 29),
            ),
        ),
        mendable=True,
    ),
    "rotation-missing": Rule(
        "is_rot_used without the tensor rot.weight",
        f"{REPAIR} with --source, else {AGAIN}",
        always("drafts from uninitialised memory without a word"),
        mendable=True,
    ),
    "rotation-unannounced": Rule(
        "rot.weight is stored, but is_rot_used is not true",
        REPAIR,
        always(
            "drafts from states in the wrong basis: almost no draft is accepted",
            "vllm-ascend pull request #7139",
        ),
        mendable=True,
    ),
    "release-too-old": Rule(
        "shared indexers (GLM-5.2 and 5.3)",
        "use 0.23 or newer",
        (
            Verdict(
                "error",
                "KeyError while layers are built: it expects an indexer in each",
                "vllm-ascend issues #10610 and #12901; read: source of 0.17 to 0.19.1",
                until=(0, 18),
            ),
        ),
        of_engine=True,
    ),
}

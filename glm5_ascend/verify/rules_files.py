"""Rules about files, ``config.json`` and copies."""

from __future__ import annotations

from glm5_ascend.verify.rule import (
    COPY,
    FORMAT,
    MODEL,
    RAN,
    READ,
    REPAIR,
    SILENT,
    Rule,
    Verdict,
    always,
    warn,
)

FILES: dict[str, Rule] = {
    # Files
    "file-damaged": Rule("damaged file", COPY, always("cannot be read", FORMAT)),
    "file-missing": Rule("missing file", COPY, always("fails at start", FORMAT)),
    "tensor-twice": Rule(
        "tensor stored twice",
        "remove the shard that does not belong to this checkpoint",
        always("keeps the one that it reads last", READ),
    ),
    "index-foreign": Rule(
        "model.safetensors.index.json belongs to other files",
        f"{REPAIR}, or remove the index",
        always(
            "leaves out every shard that it does not list (0.23: cannot find any model weights;"
            " 0.30: weight files referenced in index but missing)",
            READ,
        ),
        mendable=True,
    ),
    "index-stale": Rule(
        "the index differs from the files",
        REPAIR,
        always(
            "reads the files all the same, but other engines and tools load what the index lists:"
            " an MTP shard that is not listed costs all draft tokens",
            "model card of PhalaCloud/GLM-5.2 (MTP shard not in the index)",
        ),
        mendable=True,
    ),
    "unfinished": Rule(
        "the quantisation has not finished",
        "repeat that glm5-ascend quantize command with --resume",
        always("finds some of the weights", FORMAT),
    ),
    # Configuration
    "config-invalid": Rule(
        "config.json",
        "restore the config.json of the release",
        always("fails or computes another model", MODEL),
    ),
    "config-quantization": Rule(
        "config.json carries the quantization_config of the source",
        REPAIR,
        always("prefers it to the description: int8 weights are taken for FP8, or it fails"),
        mendable=True,
    ),
    "config-compressed-tensors": Rule(
        "config.json declares another format than the description",
        "serve the checkpoint without quant_model_description.json, or quantise the BF16 release",
        always("prefers quantization_config, whatever the description says"),
    ),
    "config-schedule": Rule(
        "config.json lost the shared indexers",
        f"{REPAIR}: GLM-5.2 has index_topk_freq 4, index_skip_topk_offset 3, indexer_types",
        always("builds indexers that have no weights, " + SILENT),
        mendable=True,
    ),
    "config-indexer-types": Rule(
        "config.json has the schedule of shared indexers, but no indexer_types",
        REPAIR,
        (
            Verdict("error", "KeyError of a shared layer's indexer.wq_b", RAN, until=(0, 23)),
            Verdict(
                "warning",
                "not known: 0.23 fails while the model is built, 0.30 loads it",
                RAN,
                since=(0, 24),
                until=(0, 29),
            ),
        ),
        mendable=True,
    ),
    "config-head-dim": Rule(
        "head_dim in config.json is neither qk_rope_head_dim nor qk_nope_head_dim",
        f"{REPAIR}: the key may be absent",
        (
            Verdict(
                "error", "takes it for the rope's width: fails while loading", RAN, until=(0, 23)
            ),
            Verdict(
                "warning",
                "not known: 0.23 fails while loading, 0.30 ignores the key",
                RAN,
                since=(0, 24),
                until=(0, 29),
            ),
        ),
        mendable=True,
    ),
    "config-mtp": Rule(
        "config.json does not announce the MTP layer that is stored",
        f"{REPAIR}: num_nextn_predict_layers is 1 in every release",
        always("KeyError while loading: the layer is one too many", READ),
        mendable=True,
    ),
    "indexer-unused": Rule(
        "config.json shares indexers that are stored",
        f"{REPAIR}; for IndexCache pass --hf-overrides instead of editing config.json",
        (
            Verdict(
                "error",
                "KeyError while loading, where transformers derives indexer_types (5.24 does, the"
                " pinned 5.5.4 does not)",
                RAN,
                until=(0, 29),
            ),
            Verdict(
                "warning",
                "drops the weights of these indexers and shares those of earlier layers",
                RAN,
                since=(0, 30),
            ),
        ),
        mendable=True,
    ),
    # Copies
    "manifest-missing": Rule(
        "no manifest",
        "run verify --full instead",
        always("is not concerned", "quantize_manifest.json"),
    ),
    "manifest-file": Rule(
        "file that differs from the manifest",
        COPY,
        always("computes with damaged weights", "SHA-256"),
    ),
    "manifest-extra": Rule(
        "file of weights that the manifest does not list",
        "remove it, or copy the manifest that belongs to the files",
        warn("reads every safetensors file of the directory", READ),
    ),
}

"""What each release of vllm-ascend does about each condition: one table, every row with its source.

A condition without a row for a release is no problem there. Where a behaviour is known for two
releases only and differs, the row ends before the newer one, and a warning covers the gap.
"""

from __future__ import annotations

from dataclasses import dataclass

_RAN = (
    "observed: the Python of vllm-ascend 0.23.0.post1 and 0.30.0rc2 with vLLM 0.23.0 and 0.30.0,"
    " on a CPU, no NPU; most of it is recorded in tests/data/oracle/checkpoints.jsonl"
)
_READ = "read: source of vllm-ascend 0.17.0rc1 to 0.30.0rc2"
_FORMAT = "the safetensors format"
_MODEL = "config.json of the GLM-5 releases"

_SILENT = "loads without a word and computes with uninitialised memory"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the series from ``since`` to ``until`` (inclusive, None: open) do, and how it is known.

    ``severity`` is ``"error"`` where the engine refuses or computes wrongly, else ``"warning"``.
    """

    severity: str
    effect: str
    source: str
    since: tuple[int, int] | None = None
    until: tuple[int, int] | None = None

    def covers(self, series: tuple[int, int]) -> bool:
        """Whether the verdict holds for a series such as (0, 23)."""
        low, high = self.since or series, self.until or series
        return low <= series <= high

    @property
    def engines(self) -> str:
        """The series in words."""
        low, high = (".".join(map(str, s)) if s else "" for s in (self.since, self.until))
        if low and high:
            return f"vllm-ascend {low}" if low == high else f"vllm-ascend {low} to {high}"
        if low or high:
            return f"vllm-ascend from {low}" if low else f"vllm-ascend up to {high}"
        return "every vllm-ascend"


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition in words, what helps, and the verdicts by release.

    ``mendable`` says that ``glm5-ascend repair`` knows what to do, if the folder allows it;
    ``of_engine`` that the engine is at fault rather than the folder: it is not mentioned where no
    engine was named.
    """

    problem: str
    fix: str
    verdicts: tuple[Verdict, ...]
    mendable: bool = False
    of_engine: bool = False


def _always(effect: str, source: str = _RAN) -> tuple[Verdict, ...]:
    return (Verdict("error", effect, source),)


def _warn(effect: str, source: str) -> tuple[Verdict, ...]:
    return (Verdict("warning", effect, source),)


_REPAIR = "run glm5-ascend repair"
_AGAIN = "quantise the checkpoint again"
_COPY = "copy or download this file again and compare checksums"

RULES: dict[str, Rule] = {
    # Files
    "file-damaged": Rule("damaged file", _COPY, _always("cannot be read", _FORMAT)),
    "file-missing": Rule("missing file", _COPY, _always("fails at start", _FORMAT)),
    "tensor-twice": Rule(
        "tensor stored twice",
        "remove the shard that does not belong to this checkpoint",
        _always("keeps the one that it reads last", _READ),
    ),
    "index-foreign": Rule(
        "model.safetensors.index.json belongs to other files",
        f"{_REPAIR}, or remove the index",
        _always(
            "leaves out every shard that it does not list (0.23: cannot find any model weights;"
            " 0.30: weight files referenced in index but missing)",
            _READ,
        ),
        mendable=True,
    ),
    "index-stale": Rule(
        "the index differs from the files",
        _REPAIR,
        _always(
            "reads the files all the same, but other engines and tools load what the index lists:"
            " an MTP shard that is not listed costs all draft tokens",
            "model card of PhalaCloud/GLM-5.2 (MTP shard not in the index)",
        ),
        mendable=True,
    ),
    "unfinished": Rule(
        "the quantisation has not finished",
        "repeat that glm5-ascend quantize command with --resume",
        _always("finds some of the weights", _FORMAT),
    ),
    # Configuration
    "config-invalid": Rule(
        "config.json",
        "restore the config.json of the release",
        _always("fails or computes another model", _MODEL),
    ),
    "config-quantization": Rule(
        "config.json carries the quantization_config of the source",
        _REPAIR,
        _always("prefers it to the description: int8 weights are taken for FP8, or it fails"),
        mendable=True,
    ),
    "config-compressed-tensors": Rule(
        "config.json declares another format than the description",
        "serve the checkpoint without quant_model_description.json, or quantise the BF16 release",
        _always("prefers quantization_config, whatever the description says"),
    ),
    "config-schedule": Rule(
        "config.json lost the shared indexers",
        f"{_REPAIR}: GLM-5.2 has index_topk_freq 4, index_skip_topk_offset 3, indexer_types",
        _always("builds indexers that have no weights, " + _SILENT),
        mendable=True,
    ),
    "config-indexer-types": Rule(
        "config.json has the schedule of shared indexers, but no indexer_types",
        _REPAIR,
        (
            Verdict("error", "KeyError of a shared layer's indexer.wq_b", _RAN, until=(0, 23)),
            Verdict(
                "warning",
                "not known: 0.23 fails while the model is built, 0.30 loads it",
                _RAN,
                since=(0, 24),
                until=(0, 29),
            ),
        ),
        mendable=True,
    ),
    "config-head-dim": Rule(
        "head_dim in config.json is neither qk_rope_head_dim nor qk_nope_head_dim",
        f"{_REPAIR}: the key may be absent",
        (
            Verdict(
                "error", "takes it for the rope's width: fails while loading", _RAN, until=(0, 23)
            ),
            Verdict(
                "warning",
                "not known: 0.23 fails while loading, 0.30 ignores the key",
                _RAN,
                since=(0, 24),
                until=(0, 29),
            ),
        ),
        mendable=True,
    ),
    "config-mtp": Rule(
        "config.json does not announce the MTP layer that is stored",
        f"{_REPAIR}: num_nextn_predict_layers is 1 in every release",
        _always("KeyError while loading: the layer is one too many", _READ),
        mendable=True,
    ),
    "indexer-unused": Rule(
        "config.json shares indexers that are stored",
        f"{_REPAIR}; for IndexCache pass --hf-overrides instead of editing config.json",
        (
            Verdict(
                "error",
                "KeyError while loading, where transformers derives indexer_types (5.24 does, the"
                " pinned 5.5.4 does not)",
                _RAN,
                until=(0, 29),
            ),
            Verdict(
                "warning",
                "drops the weights of these indexers and shares those of earlier layers",
                _RAN,
                since=(0, 30),
            ),
        ),
        mendable=True,
    ),
    # Inventory
    "tensor-missing": Rule(
        "missing tensor", f"copy all files again, or {_AGAIN}", _always(_SILENT)
    ),
    "scale-missing": Rule("missing scale", _AGAIN, _always(_SILENT)),
    "scale-bias-missing": Rule(
        "missing scale_bias",
        f"{_REPAIR}: it follows from codes and scales",
        _always(_SILENT),
        mendable=True,
    ),
    "static-missing": Rule(
        "missing tensor of a static W8A8 linear",
        f"{_REPAIR} if the others are there, else {_AGAIN}",
        _always(_SILENT),
        mendable=True,
    ),
    "tensor-unknown": Rule(
        "tensor that the model does not have",
        "remove it, or correct config.json",
        _always("KeyError while loading", _READ),
    ),
    "shape": Rule("shape", _AGAIN, _always("fails while loading")),
    "dtype": Rule("dtype", _AGAIN, _always("converts the numbers without a word", _READ)),
    "scale-bias-columns": Rule(
        "scale_bias of a down projection in one column",
        f"{_REPAIR}: 16 partial sums follow from codes and scales",
        _always("fills one of 16 columns and adds the rest from uninitialised memory"),
        mendable=True,
    ),
    "scale-axis": Rule(
        "scale without its second axis", _REPAIR, _always("fails while loading"), mendable=True
    ),
    "int4-unpacked": Rule(
        "int4 codes that are not packed along the output axis",
        _AGAIN,
        _always("fails while loading: two rows share a byte, even row in the low half"),
    ),
    "int8-in-float": Rule(
        "int8 stored for a float matrix", _AGAIN, _always("copies codes into BF16 without a word")
    ),
    "float-in-int8": Rule(
        "float stored for a quantised matrix",
        "correct the description, or quantise the checkpoint again",
        _always("cuts the values to integers without a word", _READ),
    ),
    # Description
    "description-missing": Rule(
        "int8 weights without quant_model_description.json",
        "copy the description of the checkpoint; repair writes one from the tensors",
        _always("ValueError: ModelSlim Quantization Config Not Found"),
        mendable=True,
    ),
    "undescribed-fused": Rule(
        "module of a fused layer that the description leaves out",
        _REPAIR,
        _always("KeyError while the model is built"),
        mendable=True,
    ),
    "undescribed-int8": Rule(
        "int8 weight that the description leaves out",
        _REPAIR,
        (
            Verdict("error", "KeyError while the model is built", _RAN, until=(0, 26)),
            Verdict(
                "error",
                "takes it for float: KeyError of its scale, or codes copied into BF16 silently",
                _RAN,
                since=(0, 27),
            ),
        ),
        mendable=True,
    ),
    "undescribed-linear": Rule(
        "float module that the description leaves out",
        _REPAIR,
        (Verdict("error", "KeyError while the model is built", _READ, until=(0, 26)),),
        mendable=True,
    ),
    "undescribed-other": Rule(
        "tensor that the description leaves out",
        _REPAIR,
        _warn("does not look it up, but tools that follow the description miss it", _READ),
        mendable=True,
    ),
    "described-unknown": Rule(
        "description of a tensor that is not there",
        _REPAIR,
        _warn(
            "ignores it; the description belongs to another checkpoint, or a tensor is lost", _READ
        ),
        mendable=True,
    ),
    "description-value": Rule(
        "description", f"copy the file again, or {_AGAIN}", _always("cannot use it", _READ)
    ),
    "description-part": Rule(
        "scheme of a part that differs from its weight's",
        _REPAIR,
        _warn("looks at the weight's only", _READ),
        mendable=True,
    ),
    "fused-mixed": Rule(
        "different schemes in a fused layer",
        _AGAIN,
        _always(
            "ValueError: not all shards are quantized with same quant type, or a size mismatch"
        ),
    ),
    "scheme-unknown": Rule(
        "scheme that the engine does not have", _AGAIN, _always("NotImplementedError")
    ),
    "scheme-float-only": Rule(
        "quantised module that the engine reads as float only",
        f"{_AGAIN} and leave this module float",
        _always("KeyError (wk, weights_proj, eh_proj) or AssertionError (router, kv_b_proj)"),
    ),
    "scheme-int4-linear": Rule(
        "int4 scheme for a linear layer",
        _AGAIN,
        (
            Verdict("error", "ZeroDivisionError with one scale per channel", _RAN, until=(0, 26)),
            Verdict("error", "NotImplementedError", _RAN, since=(0, 27)),
        ),
    ),
    "scheme-a5": Rule(
        "scheme of the Ascend 950",
        "quantise for A2 and A3 with --scheme w8a8 or w4a8; the tensors of these modules are not"
        " checked",
        _warn("runs on the 950 only", _READ),
    ),
    "version-key": Rule(
        "version is not 1.0.0 beside packed int4",
        _REPAIR,
        (Verdict("error", "KeyError w13_scale_bias while loading", _RAN, until=(0, 26)),),
        mendable=True,
    ),
    "group-size-missing": Rule(
        "no group_size beside int4 with one scale per channel",
        _REPAIR,
        (
            Verdict(
                "error",
                "assumes groups of 256 and multiplies with uninitialised scales, without a word",
                _RAN,
                until=(0, 26),
            ),
        ),
        mendable=True,
    ),
    "group-size": Rule(
        "group_size above 0 beside int4 with one scale per channel",
        _REPAIR,
        (
            Verdict(
                "error",
                "loads without a word and multiplies with uninitialised scales",
                _RAN,
                until=(0, 26),
            ),
            Verdict("error", "ValueError: per-group is no longer supported", _RAN, since=(0, 27)),
        ),
        mendable=True,
    ),
    "int4-groups": Rule(
        "int4 with two levels of scales",
        "quantise again with one scale per channel",
        (Verdict("error", "ValueError: per-group is no longer supported", _READ, since=(0, 27)),),
    ),
    "int4-version-0": Rule(
        "int4 in the layout of description version 0, one code per byte",
        "quantise again",
        (Verdict("error", "fails while loading", _READ, since=(0, 27)),),
    ),
    "query-up-float": Rule(
        "q_b_proj is float beside a quantised q_a_proj",
        f"{_AGAIN} with both in one scheme",
        (
            Verdict(
                "warning",
                "not known: 0.23 runs it, 0.30 fails after loading",
                _RAN,
                since=(0, 24),
                until=(0, 29),
            ),
            Verdict(
                "error",
                "AttributeError weight_scale after loading (npu_mla_prolog_v3)",
                _RAN,
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
        f"{_AGAIN} with both static (MLAPO) or both dynamic (PROLOG_V3)",
        _warn("runs neither of its fused kernels, only slower", _READ),
    ),
    "static-norm-bias": Rule(
        "static attention, and no key of the description contains norm.bias",
        _REPAIR,
        _always(
            "AttributeError None.data: MLAPO needs the bias that such a key switches on", _READ
        ),
        mendable=True,
    ),
    "shared-input": Rule(
        "q_a_proj and kv_a_proj_with_mqa with different input scales",
        _AGAIN,
        _always("keeps the one that it reads last, without a word"),
    ),
    "cache-mark": Rule(
        "mark of the int8 indexer cache",
        "use INT8_DYNAMIC on layers that own an indexer",
        _warn("keeps the cache of this layer in BF16", _READ),
        mendable=True,
    ),
    "cache-rotations": Rule(
        "indexer_quant_type without the tensors q_rot and k_rot that it announces",
        "marks per layer (…indexer.quant_type) are enough from 0.27 on",
        _warn("makes parameters that may stay unloaded", _READ),
    ),
    # MTP and rotation
    "mtp-absent": Rule(
        "the MTP layer that config.json announces is not stored",
        f"{_REPAIR} with --source, or set num_nextn_predict_layers to 0",
        _always("serves without drafts only; a draft model starts with uninitialised memory"),
        mendable=True,
    ),
    "mtp-undescribed": Rule(
        "the description leaves out the MTP layer",
        _REPAIR,
        _always("KeyError model.layers.N.self_attn.q_a_proj.weight once drafts are switched on"),
        mendable=True,
    ),
    "mtp-vocabulary": Rule(
        "the MTP layer lacks its copy of embedding or head",
        f"{_REPAIR}, or use 0.30",
        (
            Verdict(
                "error", "drafts from uninitialised memory without a word", _RAN, until=(0, 23)
            ),
            Verdict(
                "warning",
                "not known: 0.23 drafts from uninitialised memory, 0.30 shares the main model's",
                _RAN,
                since=(0, 24),
                until=(0, 29),
            ),
        ),
        mendable=True,
    ),
    "rotation-missing": Rule(
        "is_rot_used without the tensor rot.weight",
        f"{_REPAIR} with --source, else {_AGAIN}",
        _always("drafts from uninitialised memory without a word"),
        mendable=True,
    ),
    "rotation-unannounced": Rule(
        "rot.weight is stored, but is_rot_used is not true",
        _REPAIR,
        _always(
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
    # Values
    "not-finite": Rule(
        "NaN or infinity", _COPY + f", or {_AGAIN}", _always("gives NaN, or !!!!!", "IEEE 754")
    ),
    "scale-value": Rule(
        "scale that is not positive",
        _AGAIN,
        _always("loses the row, or turns its sign", "the formula"),
    ),
    "scale-rounded": Rule(
        "scale that BF16 cannot hold",
        f"{_AGAIN}: codes must be computed for the scale that the engine keeps",
        _warn("rounds it to BF16 while loading; up to 0.4 % error of the row", _READ),
    ),
    "offset-value": Rule(
        "weight_offset is not zero", _AGAIN, _always("ignores it: codes are symmetric", _READ)
    ),
    "scale-bias-value": Rule(
        "scale_bias is not 8 times the sum of codes and scale",
        f"{_AGAIN}: bias, scale or packing is wrong, and nothing says which",
        _always("adds a wrong constant to each output", "the kernel's offset arithmetic"),
    ),
    "scale-bias-split": Rule(
        "columns of scale_bias are not the 16 partial sums of the input",
        f"{_AGAIN}, or serve with --enable-expert-parallel",
        _warn("is right with expert parallel only, where the total counts", _READ),
    ),
    "deq-scale-value": Rule(
        "deq_scale is not input_scale times weight_scale",
        _AGAIN,
        _always("uses it as it is", "the formula"),
    ),
    "deq-scale-rounded": Rule(
        "deq_scale was rounded to BF16",
        f"{_AGAIN}; msModelSlim rounds the product",
        _warn("uses it as it is: a gain error of up to 0.2 % per channel", "the formula"),
    ),
    "quant-bias-value": Rule(
        "quant_bias is not minus offset times the sum of codes",
        _AGAIN,
        _always("adds a wrong constant to each output", "the formula"),
    ),
    "codes-narrow": Rule(
        "int8 codes that use 4 bits only",
        f"{_AGAIN}: int4 is stored two to a byte",
        _warn("runs it as int8: the size of int8 with the error of int4", "the formula"),
    ),
    "codes-zero": Rule(
        "matrix of zeros",
        f"compare with the source, or {_AGAIN}",
        _warn("adds nothing", "the formula"),
    ),
    "mtp-embedding-value": Rule(
        "the MTP layer's embedding differs from the main one",
        _AGAIN,
        _warn("drafts from other vectors than the main model reads", "the model's definition"),
    ),
    "rotation-value": Rule(
        "rot.weight is not R1ᵀ diag(γ) R1",
        _AGAIN,
        _always("drafts from wrong states: few are accepted", "vllm-ascend pull request #7139"),
    ),
    "source-error": Rule(
        "weights far from the source",
        _AGAIN,
        _always("computes another model", "measured against --source"),
    ),
    "source-unlike": Rule(
        "tensor that cannot be compared with the source",
        "give the checkpoint that this one was made from",
        _warn("may be right", "measured against --source"),
    ),
    # Copies
    "manifest-missing": Rule(
        "no manifest",
        "run verify --full instead",
        _always("is not concerned", "quantize_manifest.json"),
    ),
    "manifest-file": Rule(
        "file that differs from the manifest",
        _COPY,
        _always("computes with damaged weights", "SHA-256"),
    ),
    "manifest-extra": Rule(
        "file of weights that the manifest does not list",
        "remove it, or copy the manifest that belongs to the files",
        _warn("reads every safetensors file of the directory", _READ),
    ),
}

"""What a checkpoint is: family, sizes by part, quantisation schemes, cache bytes per token."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from glm5_ascend.ascend_inventory import check_ascend_inventory
from glm5_ascend.checkpoint import CheckpointReader, expected_tensors
from glm5_ascend.config import Glm5Config
from glm5_ascend.console import format_bytes, one_line
from glm5_ascend.description_file import DescriptionFile
from glm5_ascend.files import DESCRIPTION_FILE, present

SCHEMA = 1

PARTS = {
    "attention": "attention",
    "indexer": "indexer",
    "routed_experts": "routed experts",
    "shared_experts": "shared experts",
    "dense_mlp": "dense MLP",
    "gate": "router",
    "embed_head": "embedding and head",
    "norms": "norms",
    "mtp": "MTP layer",
    "rotation": "rotation",
}
_BF16_BYTES, _FP16_BYTES, _F32_BYTES = 2, 2, 4
# Latent values that share one F32 scale in the int8 latent cache.
_LATENT_TILE = 128


@dataclass(frozen=True, slots=True)
class Inspection:
    """The result of :func:`inspect_checkpoint`; sizes are bytes as stored."""

    directory: Path
    config: Glm5Config
    quantisation: str
    rotated: bool
    tensor_count: int
    part_bytes: dict[str, int]
    dtype_bytes: dict[str, int]
    schemes: dict[str, dict[str, int]]
    cache_bytes: dict[str, int | None]

    def as_dict(self) -> dict[str, object]:
        """JSON form, schema 1; units are in the keys."""
        return {
            "schema": SCHEMA,
            "directory": str(self.directory),
            "family": self.config.family,
            "quantisation": self.quantisation,
            "rotated": self.rotated,
            "dtype": self.config.dtype,
            "decoder_layers": self.config.num_hidden_layers,
            "mtp_layers": self.config.num_nextn_predict_layers,
            "indexer_layers": _indexer_layers(self.config),
            "index_topk": self.config.index_topk,
            "tensor_count": self.tensor_count,
            "size_bytes": sum(self.part_bytes.values()),
            "part_bytes": self.part_bytes,
            "dtype_bytes": self.dtype_bytes,
            "scheme_modules": self.schemes,
            "kv_cache_bytes_per_token": self.cache_bytes,
        }

    def as_text(self) -> str:
        """The same for people."""
        config, total = self.config, sum(self.part_bytes.values())
        lines = [
            one_line(str(self.directory)),
            f"  family        {config.family}: {config.num_hidden_layers} layers"
            f" + {config.num_nextn_predict_layers} MTP, {_indexer_layers(config)} with an indexer"
            f" (top {config.index_topk})",
            f"  quantisation  {self.quantisation}{', rotated' if self.rotated else ''};"
            f" float tensors {config.dtype}",
            f"  size          {format_bytes(total)} in {self.tensor_count:,} tensors"
            f" ({', '.join(f'{n} {format_bytes(b)}' for n, b in self.dtype_bytes.items())})",
        ]
        for part, label in PARTS.items():
            if part in self.part_bytes:
                size = self.part_bytes[part]
                schemes = self.schemes.get(part, {})
                what = ", ".join(f"{scheme} x{count:,}" for scheme, count in schemes.items())
                share = f"{100 * size / total:5.1f} %"
                lines.append(f"    {label:<20}{format_bytes(size):>10} {share}  {what}".rstrip())
        lines.append("  KV cache bytes per token")
        for cache, label in _CACHES.items():
            size_per_token = self.cache_bytes[cache]
            shown = "not possible" if size_per_token is None else f"{size_per_token:,}"
            lines.append(f"    {label:<28}{shown:>10}")
        return "\n".join(lines)


_CACHES = {
    "bf16": "BF16",
    "li_c8": "LI-C8 (int8 indexer key)",
    "sfa_c8": "SFA-C8 (int8 latent)",
    "li_c8_sfa_c8": "both",
}


def inspect_checkpoint(directory: Path) -> Inspection:
    """Read headers and descriptions of a source or quantised checkpoint, no weights.

    A checkpoint must hold exactly the tensors of its configuration and, if it is quantised, of its
    description, which must describe every tensor with a scheme that the engine has for it.

    Raises:
        ConfigError: not a GLM-5 configuration.
        CheckpointError: broken or incomplete files.
    """
    with CheckpointReader(directory) as reader:
        config = reader.config
        description_file = directory / DESCRIPTION_FILE
        if present(description_file):
            description = DescriptionFile.read(description_file)
            schemes = _schemes(config, check_ascend_inventory(reader, description))
            quantisation, rotated = f"ascend {_experts_scheme(schemes)}", description.rotated
        else:
            reader.check_inventory(expected_tensors(config))
            schemes, rotated = {}, False
            quantisation = (
                "none" if config.fp8 is None else "fp8 blocks of {}x{}".format(*config.fp8.block)
            )
        parts: Counter[str] = Counter()
        dtypes: Counter[str] = Counter()
        for name in reader.names():
            parts[part_of(config, name)] += reader.nbytes(name)
            dtypes[reader.spec(name).dtype] += reader.nbytes(name)
        return Inspection(
            directory=directory,
            config=config,
            quantisation=quantisation,
            rotated=rotated,
            tensor_count=len(reader.names()),
            part_bytes={part: parts[part] for part in PARTS if part in parts},
            dtype_bytes=dict(dtypes.most_common()),
            schemes=schemes,
            cache_bytes=cache_bytes_per_token(config),
        )


def part_of(config: Glm5Config, name: str) -> str:
    """The key of :data:`PARTS` that a tensor belongs to; the MTP layer is one part."""
    words = name.split(".")
    if words[0] == "rot":
        return "rotation"
    if words[:2] != ["model", "layers"]:
        return "norms" if name == "model.norm.weight" else "embed_head"
    if config.is_mtp(int(words[2])):
        return "mtp"
    if "indexer" in words:
        return "indexer"
    if any("norm" in word for word in words):
        return "norms"
    if words[3] == "self_attn":
        return "attention"
    owner = {"experts": "routed_experts", "shared_experts": "shared_experts", "gate": "gate"}
    return owner.get(words[4], "dense_mlp")


def cache_bytes_per_token(config: Glm5Config) -> dict[str, int | None]:
    """Bytes per token of latent and indexer caches over all layers incl. MTP, by cache format.

    BF16: (kv_lora + rope) values and an indexer key per layer that owns one. LI-C8: int8 key and
    one FP16 scale. SFA-C8: int8 latent, one F32 scale per 128 of them, BF16 rope.
    """
    latent, rope = config.kv_lora_rank, config.qk_rope_head_dim
    layers, indexers = config.layer_count, _indexer_layers(config)
    latent_bf16 = layers * (latent + rope) * _BF16_BYTES
    index_bf16 = indexers * config.index_head_dim * _BF16_BYTES
    index_c8 = indexers * (config.index_head_dim + _FP16_BYTES)
    sizes: dict[str, int | None] = {
        "bf16": latent_bf16 + index_bf16,
        "li_c8": latent_bf16 + index_c8,
        "sfa_c8": None,
        "li_c8_sfa_c8": None,
    }
    if latent % _LATENT_TILE == 0:
        scales = latent // _LATENT_TILE * _F32_BYTES
        latent_c8 = layers * (latent + rope * _BF16_BYTES + scales)
        sizes |= {"sfa_c8": latent_c8 + index_bf16, "li_c8_sfa_c8": latent_c8 + index_c8}
    return sizes


def _indexer_layers(config: Glm5Config) -> int:
    return sum(config.has_indexer(layer) for layer in range(config.layer_count))


def _experts_scheme(schemes: dict[str, dict[str, int]]) -> str:
    """Name of the quantisation after its routed experts: w4a8, w8a8, float or mixed."""
    found = {name.removesuffix("_DYNAMIC").lower() for name in schemes.get("routed_experts", {})}
    return found.pop() if len(found) == 1 else "mixed"


def _schemes(config: Glm5Config, schemes: dict[str, str]) -> dict[str, dict[str, int]]:
    """Modules per scheme for each part, from the schemes of the ``<module>.weight`` tensors."""
    counts: dict[str, Counter[str]] = {}
    for name, scheme in schemes.items():
        if name.endswith(".weight"):
            counts.setdefault(part_of(config, name), Counter())[scheme] += 1
    return {part: dict(counts[part].most_common()) for part in PARTS if part in counts}

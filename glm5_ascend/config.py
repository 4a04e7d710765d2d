"""The model configuration: a strict, frozen view of ``config.json`` for GLM-5, 5.1, 5.2 and 5.3.

Names are those of the Hugging Face file. Anything that would change the computation and is not
built here is refused; nothing is guessed. No torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from glm5_ascend.config_family import check_computation, refuse_other_models
from glm5_ascend.config_fields import Fields
from glm5_ascend.config_schedule import FULL, SHARED, Fp8Blocks, read_fp8, read_indexer_types
from glm5_ascend.errors import brief
from glm5_ascend.files import refuse_unfinished
from glm5_ascend.json_file import read_json_object

__all__ = ["Fp8Blocks", "Glm5Config", "read_json_object"]

_DTYPES = ("bfloat16", "float32")
# Far above every release (78 layers, 256 experts), and still a list of names that fits in memory.
_MOST_LAYERS = 1024
_MOST_EXPERTS = 4096
_MOST_EXPERTS_OF_ALL_LAYERS = 1 << 18


@dataclass(frozen=True, slots=True)
class Glm5Config:
    """Shape and constants of one GLM-5 checkpoint.

    Layers ``0 .. num_hidden_layers - 1`` are the decoder; the MTP (multi-token prediction) layers
    follow under the next indices. ``head_dim`` of the file has no meaning and is not kept.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    moe_intermediate_size: int
    num_hidden_layers: int
    num_nextn_predict_layers: int
    first_k_dense_replace: int
    num_attention_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    index_share_for_mtp_iteration: bool
    indexer_types: tuple[str, ...]
    n_routed_experts: int
    num_experts_per_tok: int
    n_shared_experts: int
    norm_topk_prob: bool
    routed_scaling_factor: float
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    eos_token_id: tuple[int, ...]
    pad_token_id: int | None
    dtype: str
    fp8: Fp8Blocks | None

    @classmethod
    def from_dict(cls, raw: dict[str, object], *, source: str) -> Glm5Config:
        """Read a parsed ``config.json``.

        Args:
            raw: the JSON object.
            source: its file name, for messages.

        Raises:
            ConfigError: another model family, a missing, unknown or contradictory key.
        """
        fields = Fields(raw, source)
        refuse_other_models(fields)
        check_computation(fields)
        config = _read(fields)
        _check_together(fields, config)
        return config

    @classmethod
    def from_dir(cls, path: Path) -> Glm5Config:
        """Read ``path/config.json``; raises ``ConfigError`` as :meth:`from_dict`."""
        refuse_unfinished(Path(path))
        file = Path(path) / "config.json"
        return cls.from_dict(read_json_object(file), source=str(file))

    @property
    def layer_count(self) -> int:
        """Decoder layers plus MTP layers."""
        return self.num_hidden_layers + self.num_nextn_predict_layers

    @property
    def qk_head_dim(self) -> int:
        """Width of one query or key head: nope part, then rope part."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def family(self) -> str:
        """The releases with this structure; 5.2 and 5.3 share indexers between layers."""
        return "GLM-5.2/5.3" if SHARED in self.indexer_types else "GLM-5/5.1"

    def has_indexer(self, layer: int) -> bool:
        """Whether ``layer`` owns an indexer; an MTP layer always does."""
        return self.is_mtp(layer) or self.indexer_types[layer] == FULL

    def is_moe(self, layer: int) -> bool:
        """Whether the MLP of ``layer`` is a mixture of experts."""
        return layer >= self.first_k_dense_replace

    def is_mtp(self, layer: int) -> bool:
        """Whether ``layer`` is a multi-token prediction layer."""
        return layer >= self.num_hidden_layers


def _read(fields: Fields) -> Glm5Config:
    number = fields.integer
    layers, vocab = number("num_hidden_layers", high=_MOST_LAYERS), number("vocab_size")
    pad = fields.token_ids("pad_token_id", vocab)
    dtype = fields.get("dtype") or fields.get("torch_dtype") or "bfloat16"
    if dtype not in _DTYPES:
        fields.fail(f"`dtype` is {brief(dtype)}; GLM-5 is read as {' or '.join(_DTYPES)}")
    return Glm5Config(
        vocab_size=vocab,
        hidden_size=number("hidden_size"),
        intermediate_size=number("intermediate_size"),
        moe_intermediate_size=number("moe_intermediate_size"),
        num_hidden_layers=layers,
        num_nextn_predict_layers=number(
            "num_nextn_predict_layers", low=0, high=_MOST_LAYERS, default=0
        ),
        first_k_dense_replace=number("first_k_dense_replace", low=0),
        num_attention_heads=number("num_attention_heads"),
        q_lora_rank=number("q_lora_rank"),
        kv_lora_rank=number("kv_lora_rank"),
        qk_nope_head_dim=number("qk_nope_head_dim"),
        qk_rope_head_dim=number("qk_rope_head_dim"),
        v_head_dim=number("v_head_dim"),
        index_n_heads=number("index_n_heads"),
        index_head_dim=number("index_head_dim"),
        index_topk=number("index_topk"),
        index_share_for_mtp_iteration=fields.flag("index_share_for_mtp_iteration", default=False),
        indexer_types=read_indexer_types(fields, layers),
        n_routed_experts=number("n_routed_experts", high=_MOST_EXPERTS),
        num_experts_per_tok=number("num_experts_per_tok"),
        n_shared_experts=number("n_shared_experts"),
        norm_topk_prob=fields.flag("norm_topk_prob", default=True),
        routed_scaling_factor=fields.number("routed_scaling_factor"),
        rms_norm_eps=fields.number("rms_norm_eps"),
        rope_theta=_rope_theta(fields),
        max_position_embeddings=number("max_position_embeddings"),
        eos_token_id=fields.token_ids("eos_token_id", vocab),
        pad_token_id=pad[0] if pad else None,
        dtype=str(dtype),
        fp8=read_fp8(fields),
    )


def _rope_theta(fields: Fields) -> float:
    if "rope_parameters" not in fields:
        fields.fail(
            "missing key `rope_parameters`",
            "GLM-5 stores rope_theta inside rope_parameters; a flat rope_theta is not read",
        )
    rope = fields.nested("rope_parameters")
    rope.refuse_unknown(("rope_theta", "rope_type", "partial_rotary_factor"))
    rope.constant("rope_type", "default")
    rope.constant("partial_rotary_factor", 1.0)
    theta = rope.number("rope_theta")
    if "rope_theta" in fields and fields.number("rope_theta") != theta:
        fields.fail(f"`rope_theta` differs from rope_parameters.rope_theta ({theta:g})")
    return theta


def _check_together(fields: Fields, config: Glm5Config) -> None:
    """Constraints between two keys; each message names both."""
    heads = fields.integer("num_key_value_heads", default=config.num_attention_heads)
    if heads != config.num_attention_heads:
        fields.fail(
            f"`num_key_value_heads` ({heads}) must equal `num_attention_heads`"
            f" ({config.num_attention_heads})"
        )
    if fields.integer("qk_head_dim", default=config.qk_head_dim) != config.qk_head_dim:
        fields.fail(
            f"`qk_head_dim` must be qk_nope_head_dim + qk_rope_head_dim = {config.qk_head_dim}"
        )
    if config.qk_rope_head_dim % 2:
        fields.fail(f"`qk_rope_head_dim` must be even, got {config.qk_rope_head_dim}")
    if config.index_head_dim < config.qk_rope_head_dim:
        fields.fail("`index_head_dim` must not be smaller than `qk_rope_head_dim`")
    if config.num_experts_per_tok > config.n_routed_experts:
        fields.fail("`num_experts_per_tok` must not exceed `n_routed_experts`")
    if config.layer_count * config.n_routed_experts > _MOST_EXPERTS_OF_ALL_LAYERS:
        fields.fail(
            f"`n_routed_experts` ({config.n_routed_experts}) in {config.layer_count} layers are"
            f" more than {_MOST_EXPERTS_OF_ALL_LAYERS} experts"
        )
    if config.first_k_dense_replace > config.num_hidden_layers:
        fields.fail("`first_k_dense_replace` must not exceed `num_hidden_layers`")
    kinds = fields.strings("mlp_layer_types")
    derived = tuple(
        "sparse" if config.is_moe(layer) else "dense" for layer in range(config.num_hidden_layers)
    )
    if kinds is not None and kinds != derived:
        fields.fail(
            "`mlp_layer_types` contradicts `first_k_dense_replace`"
            f" ({config.first_k_dense_replace} dense layers, then sparse ones)"
        )

"""Bytes of the KV cache: per token, per block, and what a number of bytes holds."""

from __future__ import annotations

from fractions import Fraction

from glm5_ascend.deploy.memory.settings import Settings

_BF16, _FP16, _F32 = 2, 2, 4
_LATENT_TILE = 128  # int8 values of the latent that share one F32 scale
# Earlier series allocate an indexer cache in every layer, also where the indexer is shared.
_OWN_INDEXERS_SINCE = (0, 23)


def token_bytes(settings: Settings) -> Fraction:
    """Bytes of one token on one die of a rank, all layers.

    The latent cache is held whole by each TP rank and split by DCP; an indexer's cache is held
    whole by each rank. GLM-5: latent 1152 B in BF16, 656 B packed; key 256 B in BF16, 130 B int8.
    """
    model = settings.model
    latent, index = latent_bytes(settings), index_bytes(settings)
    indexers = model.index_layers + (settings.layers - model.layers)
    if model.index_layers < model.layers and settings.release.series < _OWN_INDEXERS_SINCE:
        indexers = settings.layers
    per_layer = Fraction(settings.layers * latent, settings.group.dcp)
    return (per_layer + indexers * index) / settings.group.pp


def latent_bytes(settings: Settings) -> int:
    """Bytes of a token's latent in one layer."""
    rank, rope = settings.model.kv_rank, settings.model.rope
    if settings.kv in ("sfa-c8", "both"):
        return rank + rope * _BF16 + rank // _LATENT_TILE * _F32
    return (rank + rope) * _BF16


def index_bytes(settings: Settings) -> int:
    """Bytes of a token's key in one indexer; the 950 series keeps an F32 scale."""
    width = settings.model.index_dim
    if not settings.model.index_heads:
        return 0
    if settings.kv in ("li-c8", "both"):
        return width + (_F32 if settings.sku.chip == "A5" else _FP16)
    return width * _BF16


def blocks_in(settings: Settings, kv_bytes: float) -> int:
    """Whole cache blocks that ``kv_bytes`` on each die of a rank hold."""
    return max(int(Fraction(int(kv_bytes)) / (token_bytes(settings) * settings.block)), 0)


def blocks_of(settings: Settings, tokens: int) -> int:
    """Blocks that a request of ``tokens`` tokens takes."""
    return -(-tokens // settings.block)

"""Lightning indexer: score keys, keep the best ``sparse_count``."""

from glm5_ascend.ops.lightning_indexer.api import lightning_indexer, lightning_indexer_quant

__all__ = ["lightning_indexer", "lightning_indexer_quant"]

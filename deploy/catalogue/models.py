"""Geometries of models: the sizes that memory and time follow from."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING

from glm5_ascend.deploy.catalogue.tables import CatalogueError, entries, pick, read

if TYPE_CHECKING:
    from glm5_ascend.config import Glm5Config


@dataclass(frozen=True, slots=True)
class Model:
    """Sizes of one model; see ``models.toml`` for the meaning of the less obvious ones."""

    name: str
    title: str
    validation_only: bool
    hidden: int
    layers: int
    mtp_layers: int
    dense_layers: int
    dense_width: int
    expert_width: int
    experts: int
    experts_per_token: int
    shared_experts: int
    heads: int
    q_rank: int
    kv_rank: int
    nope: int
    rope: int
    value: int
    index_heads: int
    index_dim: int
    index_topk: int
    vocab: int
    index_layers: int
    index_period: int
    positions: int
    source: str

    @property
    def all_layers(self) -> int:
        """Decoder and MTP layers."""
        return self.layers + self.mtp_layers

    @property
    def moe_layers(self) -> int:
        """Layers with routed experts, those of MTP included."""
        return self.all_layers - self.dense_layers

    @property
    def indexers(self) -> int:
        """Layers with an indexer, those of MTP included."""
        return self.index_layers + (self.mtp_layers if self.index_heads else 0)

    # Parameters of one layer's parts.

    @property
    def expert_params(self) -> int:
        """Gate, up and down projection of one expert."""
        return 3 * self.hidden * self.expert_width

    @property
    def dense_params(self) -> int:
        """Gate, up and down projection of a dense layer."""
        return 3 * self.hidden * self.dense_width

    @property
    def down_params(self) -> int:
        """The projections to the query's and the cache's low rank; never split by TP."""
        return self.hidden * (self.q_rank + self.kv_rank + self.rope)

    @property
    def query_params(self) -> int:
        """The projection from low rank to all heads' queries."""
        return self.q_rank * self.heads * (self.nope + self.rope)

    @property
    def absorbed_params(self) -> int:
        """The projections from the latent to keys and values, absorbed and kept in BF16."""
        return self.kv_rank * self.heads * (self.nope + self.value)

    @property
    def output_params(self) -> int:
        """The output projection of attention."""
        return self.heads * self.value * self.hidden

    @property
    def indexer_params(self) -> int:
        """Query, key and head-weight projections of an indexer."""
        if not self.index_heads:
            return 0
        query = self.q_rank * self.index_heads * self.index_dim
        return query + self.hidden * (self.index_dim + self.index_heads)

    @classmethod
    def from_config(cls, config: Glm5Config, name: str) -> Model:
        """The geometry of a checkpoint's configuration."""
        full = sum(config.has_indexer(i) for i in range(config.num_hidden_layers))
        return cls(
            name=name,
            title=name,
            validation_only=False,
            hidden=config.hidden_size,
            layers=config.num_hidden_layers,
            mtp_layers=config.num_nextn_predict_layers,
            dense_layers=config.first_k_dense_replace,
            dense_width=config.intermediate_size,
            expert_width=config.moe_intermediate_size,
            experts=config.n_routed_experts,
            experts_per_token=config.num_experts_per_tok,
            shared_experts=config.n_shared_experts,
            heads=config.num_attention_heads,
            q_rank=config.q_lora_rank,
            kv_rank=config.kv_lora_rank,
            nope=config.qk_nope_head_dim,
            rope=config.qk_rope_head_dim,
            value=config.v_head_dim,
            index_heads=config.index_n_heads,
            index_dim=config.index_head_dim,
            index_topk=config.index_topk,
            vocab=config.vocab_size,
            index_layers=full,
            index_period=max(round(config.num_hidden_layers / full), 1),
            positions=config.max_position_embeddings,
            source="config.json of the checkpoint",
        )


@cache
def models() -> dict[str, Model]:
    """Every geometry by name."""
    wanted = {item.name for item in fields(Model)} - {"name"}
    found = {}
    for name, entry in entries(read("models.toml"), "model").items():
        if wanted != entry.keys():
            raise CatalogueError(
                f"model {name} has other keys than {', '.join(sorted(wanted))}",
                "correct models.toml",
            )
        found[name] = Model(name=name, **entry)  # type: ignore[arg-type]
    return found


def model(name: str) -> Model:
    """The geometry of ``name``, in any case of letters.

    Raises:
        CatalogueError: no such model.
    """
    pick("model", name.strip().lower(), list(models()))
    return models()[name.strip().lower()]

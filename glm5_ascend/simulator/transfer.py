"""A connector that carries caches from a prefill engine to a decode engine through files.

It stands in for MooncakeConnectorV1 where no NPU is. The prefill request names a key in
``kv_transfer_params`` (``{"save": KEY}``), the decode request the same key (``{"load": KEY}``). The
file holds the cache blocks of the prompt, of every layer: latents, indexer keys and those of the
draft layer. All ranks of TP hold the same, so the first one writes, and layouts may differ.
"""

from __future__ import annotations

import os
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
)
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank
from vllm.logger import init_logger

logger = init_logger(__name__)

_KEY = re.compile(r"[0-9a-f]{32}")


@dataclass
class Move:
    """Blocks of one request to write to, or read from, the file of ``key``.

    Attributes:
        first: number of the first of ``blocks`` within the prompt.
    """

    request: str
    key: str
    blocks: list[int]
    first: int = 0


@dataclass
class Moves(KVConnectorMetadata):  # type: ignore[misc]
    """What the workers do in one step."""

    saves: list[Move] = field(default_factory=list)
    loads: list[Move] = field(default_factory=list)


class FolderConnector(KVConnectorBase_V1):  # type: ignore[misc]
    """Scheduler's and worker's side; ``folder`` is in ``kv_connector_extra_config``."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        self._folder = Path(self._kv_transfer_config.get_from_extra_config("folder", ""))
        self._block = int(vllm_config.cache_config.block_size)
        self._caches: dict[str, torch.Tensor] = {}
        self._loaded: set[str] = set()
        self._saving: dict[str, tuple[Any, list[int]]] = {}
        self._loads: list[Move] = []
        self._computed: dict[str, int] = {}

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """All tokens of the prompt that are not computed, where a file is named; not at once."""
        key = self._key(request, "load")
        if key is None:
            return 0, False
        if not (self._folder / key).is_file():
            logger.warning("No cache %s has come: the prompt is computed here.", key)
            return 0, False
        missing = request.num_prompt_tokens - num_computed_tokens
        self._computed[request.request_id] = num_computed_tokens
        return missing, missing > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Remember requests to save, and the blocks to load into."""
        if self._key(request, "save") is not None:
            self._saving.setdefault(request.request_id, (request, []))
        key = self._key(request, "load")
        if key is not None and num_external_tokens > 0:
            first = self._computed.pop(request.request_id) // self._block
            count = -(-request.num_prompt_tokens // self._block)
            own = list(blocks.get_block_ids()[0])[first:count]
            self._loads.append(Move(request.request_id, key, own, first))

    def build_connector_meta(self, scheduler_output: Any) -> Moves:
        """The loads since the last step, and the prompts that this step completes."""
        moves = Moves(loads=self._loads)
        self._loads = []
        for new in scheduler_output.scheduled_new_reqs:
            self._extend(
                moves, scheduler_output, new.req_id, new.block_ids, new.num_computed_tokens
            )
        cached = scheduler_output.scheduled_cached_reqs
        for number, name in enumerate(cached.req_ids):
            if name in cached.resumed_req_ids and name in self._saving:
                self._saving[name][1].clear()
            done = cached.num_computed_tokens[number]
            self._extend(moves, scheduler_output, name, cached.new_block_ids[number], done)
        return moves

    def _extend(self, moves: Moves, output: Any, name: str, blocks: Any, done: int) -> None:
        if name not in self._saving:
            return
        request, own = self._saving[name]
        own += blocks[0] if blocks else []
        if done + output.num_scheduled_tokens[name] >= request.num_prompt_tokens:
            count = -(-request.num_prompt_tokens // self._block)
            moves.saves.append(Move(name, str(self._key(request, "save")), own[:count]))
            del self._saving[name]

    @staticmethod
    def _key(request: Any, kind: str) -> str | None:
        key = (request.kv_transfer_params or {}).get(kind)
        return key if isinstance(key, str) and _KEY.fullmatch(key) else None

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, None]:
        """Forget an aborted request, and remove the file of one that was loaded."""
        self._saving.pop(request.request_id, None)
        self._computed.pop(request.request_id, None)
        key = self._key(request, "load")
        if key is not None:
            (self._folder / key).unlink(missing_ok=True)
        return False, None

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Keep the caches of all layers, [blocks, …] each."""
        self._caches = kv_caches

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Copy what files hold into the blocks."""
        moves = self._get_connector_metadata()
        for move in moves.loads:
            stored = torch.load(self._folder / move.key, weights_only=True)
            missing = sorted(self._caches.keys() - stored.keys())
            if missing:
                logger.warning(
                    "Cache %s holds nothing for %s: prefill has no such layer, it stays empty.",
                    *(move.key, ", ".join(missing)),
                )
            for name, cache in self._caches.items():
                if name in stored:
                    cache[move.blocks] = stored[name][move.first : move.first + len(move.blocks)]
            self._loaded.add(move.request)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: loads are done when they are started."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Nothing: caches are written whole, for not every layer calls this."""

    def wait_for_save(self) -> None:
        """Write the blocks of prompts that are complete, under their name once they are whole."""
        moves = self._get_connector_metadata()
        if get_tensor_model_parallel_rank() != 0:
            return
        for move in moves.saves:
            held = {name: cache[move.blocks].clone() for name, cache in self._caches.items()}
            with tempfile.NamedTemporaryFile(dir=self._folder, delete=False) as file:
                torch.save(held, file)
            os.replace(file.name, self._folder / move.key)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Requests whose caches have been loaded since the last call."""
        loaded, self._loaded = self._loaded, set()
        return None, loaded or None

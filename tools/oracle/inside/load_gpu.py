"""Loads a checkpoint with vLLM alone as it would on a GPU, MTP included; see ``gpu.py``."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from tools.oracle.inside.load import Progress
from tools.oracle.inside.report import Record, failure
from tools.oracle.inside.watch import SourceWatch, healed, poison

_CPU = torch.device("cpu")
_DRAFT = {"method": "mtp", "num_speculative_tokens": 1, "enforce_eager": True}


def prepare() -> None:
    """Import what every trial needs; once, before the trials."""
    import vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors
    import vllm.model_executor.models.deepseek_v2
    import vllm.v1.attention.backends.mla.flashmla_sparse
    import vllm.v1.spec_decode.llm_base_proposer  # noqa: F401


def try_load(trial: Record) -> Record:
    """Verdict on the checkpoint ``trial["directory"]``, and what computes its layers.

    ``methods`` counts the quantisation method and the kernel of the layers that hold weights, those
    of the drafter with ``mtp:`` in front.
    """
    os.environ.update(trial.get("env", {}))
    progress = _GpuProgress(mtp=bool(trial["mtp"]))
    verdict: Record = {"verdict": "accepted", "stage": "done"}
    try:
        progress.run(Path(trial["directory"]))
    except Exception as error:
        verdict = failure(progress.stage, error)
    found = progress.forgiven()
    if verdict["verdict"] == "accepted" and any(found.values()):
        verdict["verdict"] = "silent"
    return verdict | found | {"methods": progress.methods}


class _GpuProgress(Progress):
    def __init__(self, *, mtp: bool) -> None:
        super().__init__(mtp=mtp)
        self.found["unread"] = []
        self.methods: dict[str, int] = {}
        self._mtp_layer = ""

    def run(self, directory: Path) -> None:
        from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

        config = _engine_config(directory, mtp=self._mtp)
        text = config.model_config.hf_text_config
        self._mtp_layer = f"model.layers.{text.num_hidden_layers}."
        _start_worker(config)
        stock = DefaultModelLoader.get_all_weights
        with SourceWatch() as sources:

            def get_all_weights(*args: Any) -> Iterator[tuple[str, torch.Tensor]]:
                yield from sources.noted(stock(*args))

            with mock.patch.object(DefaultModelLoader, "get_all_weights", get_all_weights):
                model = self._model("", config, config.model_config, config.load_config)
                self._count(model, "")
                if self._mtp:
                    self._drafter(config, model)
        unread = sources.unread()
        if not self._mtp:
            unread = [name for name in unread if not name.startswith(self._mtp_layer)]
        self.found["unread"] = unread

    def built(self, model: Any) -> None:
        # Scales start as ones here, which would hide that they are missing.
        poison(model)

    def _drafter(self, config: Any, target: Any) -> None:
        from vllm.config import set_current_vllm_config
        from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

        speculative = config.speculative_config
        proposer: Any = object.__new__(SpecDecodeBaseProposer)
        proposer.vllm_config, proposer.speculative_config = config, speculative
        proposer.draft_model_config, proposer.method = speculative.draft_model_config, "mtp"
        proposer.use_local_argmax_reduction = False
        with set_current_vllm_config(config):
            draft = proposer._create_draft_vllm_config()
        load_config = draft.load_config
        proposer.model = self._model("mtp_", draft, proposer.draft_model_config, load_config)
        with set_current_vllm_config(config):
            self.stage = "mtp_share"
            proposer._maybe_share_embeddings(target)
            proposer._maybe_share_lm_head(target)
        shared = healed(proposer.model, "mtp: ")
        self.found["uninitialised"] = [n for n in self.found["uninitialised"] if n not in shared]
        self._count(proposer.model, "mtp: ")

    def forgiven(self) -> dict[str, list[str]]:
        """What was found, without what only checkpoints with an activation order have."""
        kept = [name for name in self.found["uninitialised"] if "g_idx" not in name]
        return self.found | {"uninitialised": kept}

    def _count(self, model: Any, prefix: str) -> None:
        counts = Counter(filter(None, map(_method, model.modules())))
        self.methods |= {prefix + name: count for name, count in sorted(counts.items())}


def _method(module: Any) -> str:
    """Scheme and kernel of a layer with quantised weights, or "" of any other module."""
    method = getattr(module, "quant_method", None)
    if not type(method).__name__.startswith("CompressedTensors"):
        return ""
    experts = getattr(method, "experts_cls", None)
    if experts is not None:
        return f"{type(method).__name__}: {experts.__name__}"
    return f"{type(module.scheme).__name__}: {type(module.scheme.kernel).__name__}"


def _engine_config(directory: Path, *, mtp: bool) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(
        model=str(directory),
        skip_tokenizer_init=True,
        enforce_eager=True,
        speculative_config=_DRAFT if mtp else None,
    ).create_engine_config()


def _start_worker(config: Any) -> None:
    from vllm.config import set_current_vllm_config
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
    from vllm.v1.worker.workspace import init_workspace_manager

    with set_current_vllm_config(config), tempfile.TemporaryDirectory() as folder:
        rendezvous = f"file://{os.path.join(folder, 'store')}"
        init_distributed_environment(1, 0, rendezvous, 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
    init_workspace_manager(_CPU)

"""Builds the model of a checkpoint on this CPU, loads it and prepares the weights, MTP included."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from tools.oracle.inside.report import Record, failure
from tools.oracle.inside.watch import CopyWatch, healed, poisoned, uninitialised

_CPU = torch.device("cpu")


def prepare() -> None:
    """Import and patch what a worker does when it starts; once, before the trials."""
    torch.Tensor.npu = lambda self, *args, **kwargs: self
    torch.distributed.ProcessGroup._get_backend = mock.Mock()
    from vllm_ascend import ops
    from vllm_ascend.utils import adapt_patch

    adapt_patch()
    ops.register_dummy_fusion_op()
    import vllm_ascend.spec_decode  # noqa: F401


def try_load(trial: Record) -> Record:
    """Verdict on the checkpoint ``trial["directory"]``, with the stages that it passed."""
    progress = Progress(mtp=bool(trial["mtp"]))
    try:
        progress.run(Path(trial["directory"]))
    except Exception as error:
        return failure(progress.stage, error) | progress.found
    offsets = [name for name in progress.found["uninitialised"] if name.endswith("weight_offset")]
    if offsets and not _reads_offsets(Path(trial["directory"])):
        kept = [name for name in progress.found["uninitialised"] if name not in offsets]
        progress.found["uninitialised"] = kept
    silent = any(progress.found.values())
    return {"verdict": "silent" if silent else "accepted", "stage": "done"} | progress.found


def _reads_offsets(directory: Path) -> bool:
    """Whether a scheme of the checkpoint computes with ``weight_offset``: those of A16 do."""
    text = (directory / "quant_model_description.json").read_text(encoding="utf-8")
    return "A16" in text


class Progress:
    """One loading, stage by stage, and what it left undone.

    Args:
        mtp: the drafter too.
    """

    def __init__(self, *, mtp: bool) -> None:
        self.stage = "config"
        self.found: dict[str, list[str]] = {"uninitialised": [], "cast": [], "overwritten": []}
        self._mtp = mtp

    def run(self, directory: Path) -> None:
        """Build, load and prepare the model of a checkpoint; raises what vLLM raises."""
        config = _engine_config(directory, mtp=self._mtp)
        _start_worker(config)
        model = self._model("", config, config.model_config, config.load_config)
        if self._mtp:
            self._drafter(config, model)

    def built(self, model: Any) -> None:
        """Called between building a model and loading it."""

    def _model(self, prefix: str, config: Any, model_config: Any, load_config: Any) -> Any:
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader import get_model_loader, utils
        from vllm.utils.torch_utils import set_default_torch_dtype

        with set_current_vllm_config(config), set_default_torch_dtype(model_config.dtype):
            self.stage = f"{prefix}build"
            with poisoned():
                model = utils.initialize_model(vllm_config=config, model_config=model_config)
            self.built(model)
            self.stage = f"{prefix}load_weights"
            with CopyWatch() as watch:
                get_model_loader(load_config).load_weights(model, model_config)
            self.found["cast"] += watch.cast
            self.found["overwritten"] += watch.overwritten
            self.found["uninitialised"] += uninitialised(model, "mtp: " if prefix else "")
            self.stage = f"{prefix}process_weights"
            utils.process_weights_after_loading(model, model_config, _CPU)
        return model

    def _drafter(self, config: Any, target: Any) -> None:
        from vllm.config import set_current_vllm_config
        from vllm_ascend.spec_decode.eagle_proposer import AscendEagleProposer

        speculative = config.speculative_config
        proposer = object.__new__(AscendEagleProposer)
        proposer.vllm_config, proposer.speculative_config = config, speculative
        proposer.draft_model_config, proposer.method = speculative.draft_model_config, "mtp"
        proposer.use_compress = False
        with set_current_vllm_config(config):
            draft = proposer._create_draft_vllm_config()
            load_config = speculative.draft_load_config or config.load_config
            proposer.model = self._model("mtp_", draft, proposer.draft_model_config, load_config)
            self.stage = "mtp_share"
            shares: tuple[Callable[[Any], None], ...] = (
                proposer._maybe_share_embeddings,
                proposer._maybe_share_lm_head,
            )
            for share in shares:
                share(target)
        shared = healed(proposer.model, "mtp: ")
        self.found["uninitialised"] = [n for n in self.found["uninitialised"] if n not in shared]


def _engine_config(directory: Path, *, mtp: bool) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    described = (directory / "quant_model_description.json").is_file()
    return EngineArgs(
        model=str(directory),
        quantization="ascend" if described else None,
        skip_tokenizer_init=True,
        enforce_eager=True,
        speculative_config=_DRAFT if mtp else None,
    ).create_engine_config()


_DRAFT = {"method": "deepseek_mtp", "num_speculative_tokens": 1, "enforce_eager": True}


def _start_worker(config: Any) -> None:
    """What the worker's constructor and ``init_device`` do, with gloo in place of HCCL."""
    from vllm.config import set_current_vllm_config
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
    from vllm.platforms import current_platform
    from vllm_ascend.ascend_config import init_ascend_config
    from vllm_ascend.distributed.parallel_state import init_ascend_model_parallel
    from vllm_ascend.utils import register_ascend_customop

    type(current_platform).device_type = config.device_config.device_type = "cpu"
    config.device_config.device = _CPU
    register_ascend_customop(config)
    init_ascend_config(config)
    with set_current_vllm_config(config), tempfile.TemporaryDirectory() as folder:
        rendezvous = f"file://{os.path.join(folder, 'store')}"
        init_distributed_environment(1, 0, rendezvous, 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
        init_ascend_model_parallel(config.parallel_config)

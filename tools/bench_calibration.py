"""Time a calibration at a release's own shapes, piece by piece, and extrapolate to the whole.

``python -m tools.bench_calibration`` runs the real code on one MoE layer of GLM-5's shapes with few
experts: random weights, one sequence of twice ``index_topk`` tokens, int4 experts by GPTQ. Every
expert sees every token, so times per row and per expert carry over to 256 experts. One core, time
of the processor rather than of the clock. The
row goes to ``tools/results/calibration_cpu.jsonl``: core-hours for 78 + 1 layers and 262,144
tokens, with the time that the products alone would take at the rates measured beside it, and the
peak of anonymous and shared memory.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from glm5_ascend.checkpoint import TensorSpec, expected_tensors, write_shard
from glm5_ascend.config import Glm5Config
from glm5_ascend.quant import recipe_file
from glm5_ascend.quant.calibration import experts_run, layer_run, session, solver, statistics
from glm5_ascend.quant.calibration.corpus import Corpus
from glm5_ascend.quant.calibration.cost import ARITHMETIC, cost_of
from glm5_ascend.quant.calibration.folded_store import FoldedStore
from glm5_ascend.quant.calibration.options import CalibrationOptions, Setting
from glm5_ascend.quant.calibration.smoothing_run import FIT_ROWS
from glm5_ascend.quant.dry_run_rates import products
from glm5_ascend.quant.plan import Plan, make_plan
from tools.bench.machine import Watch
from tools.results_table import ROOT, provenance

ROWS = ROOT / "tools" / "results" / "calibration_cpu.jsonl"
TOKENS, LAYERS, MOE_LAYERS, EXPERTS, TOP_K = 262_144, 79, 76, 256, 8
GPTQ_LAYERS = 75  # the MTP layer's experts are int8 without GPTQ
_VOCABULARY = 512
_PRODUCT = 2048
_TARGET_HOURS, _TARGET_BYTES = 120.0, 16 << 30
_PIECES = {"attention": "layers"}  # under which name its products are counted
RELEASE = ROOT / "tests" / "data" / "configs" / "GLM-5.2.json"


class Clock:
    """Processor seconds of functions by label; what a timed function calls is counted there.

    Processor time, because it is core-hours that are extrapolated.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner: list[float] = []

    def wrap(self, owner: Any, name: str, label: str) -> None:
        """Replace ``owner.name`` by a timed version."""
        original = getattr(owner, name)

        def timed(*args: Any, **options: Any) -> Any:
            self._inner.append(0.0)
            started = time.process_time()
            try:
                return original(*args, **options)
            finally:
                spent = time.process_time() - started
                inner = self._inner.pop()
                self.seconds[label] = self.seconds.get(label, 0.0) + spent - inner
                if self._inner:
                    self._inner[-1] += spent

        setattr(owner, name, timed)


def config_of(experts: int) -> dict[str, Any]:
    """GLM-5.2's shapes with one layer, few experts and a small vocabulary."""
    return {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "model_type": "glm_moe_dsa",
        "dtype": "bfloat16",
        "hidden_size": 6144,
        "intermediate_size": 12288,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 1,
        "first_k_dense_replace": 0,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "q_lora_rank": 2048,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 192,
        "qk_rope_head_dim": 64,
        "v_head_dim": 256,
        "index_n_heads": 32,
        "index_head_dim": 128,
        "index_topk": 2048,
        "indexer_rope_interleave": True,
        "n_routed_experts": experts,
        "num_experts_per_tok": experts,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_theta": 8_000_000, "rope_type": "default"},
        "max_position_embeddings": 202_752,
        "vocab_size": _VOCABULARY,
        "eos_token_id": [1],
        "pad_token_id": 1,
        "tie_word_embeddings": False,
    }


def write_source(directory: Path, experts: int) -> Glm5Config:
    """Write the synthetic checkpoint, tensor by tensor."""
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config_of(experts)))
    config = Glm5Config.from_dir(directory)
    generator = torch.Generator().manual_seed(0)

    def draw(spec: TensorSpec) -> memoryview:
        values = torch.randn(spec.shape, generator=generator)
        values = values * spec.shape[-1] ** -0.5 if len(spec.shape) == 2 else 1 + 0.1 * values
        kind = torch.float32 if spec.dtype == "F32" else torch.bfloat16
        return memoryview(values.to(kind).view(torch.uint8).reshape(-1).numpy())

    tensors = expected_tensors(config)
    data = ((name, draw(spec)) for name, spec in tensors.items())
    write_shard(directory / "model.safetensors", tensors, data, {})
    return config


@contextmanager
def peak_memory() -> Iterator[Callable[[], int]]:
    """Watch the anonymous and shared memory of this process while the block runs."""
    peak, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.05):
            rows = Path("/proc/self/status").read_text().splitlines()
            used = [row for row in rows if row.startswith(("RssAnon", "RssShmem"))]
            peak[0] = max(peak[0], 1024 * sum(int(row.split()[1]) for row in used))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield lambda: peak[0]
    finally:
        stop.set()
        thread.join()


def measure(home: Path, experts: int, tokens: int) -> dict[str, Any]:
    """Seconds by label of one layer, and the peak of memory."""
    config = write_source(home / "source", experts)
    recipe = CalibrationOptions(text="default").applied(recipe_file.preset("w4a8"))
    corpus = Corpus(torch.arange(tokens) % _VOCABULARY, (0,))
    setting = Setting()
    plan = make_plan(config, replace(recipe, mtp="rules"))
    clock = Clock()
    for owner, name, label in (
        (layer_run, "attend", "attention"),
        (layer_run, "route", "router"),
        (layer_run.LayerRun, "_add_gated", "shared expert"),
        (FoldedStore, "weight", "folding"),
        (FoldedStore, "data_free", "data-free rounding"),
        (statistics.Moments, "add", "second moments"),
        (statistics.Moments, "factor", "factor"),
        (solver, "gptq", "gptq"),
        (solver, "stored_form", "packing"),
        (layer_run, "fit", "fitted vectors"),
        (experts_run._Expert, "solve", "expert forward"),
    ):
        clock.wrap(owner, name, label)
    run = session.Session(home / "source", plan, corpus, setting, home / "work", {})
    run.begin(resume=False)
    started = time.process_time()
    with peak_memory() as peak:
        for _ in run.run():
            pass
    total = time.process_time() - started
    return {"seconds": clock.seconds, "total": total, "memory": peak()}


def extrapolate(
    seconds: dict[str, float], experts: int, tokens: int, speed: dict[str, float]
) -> list[dict[str, Any]]:
    """Core-hours of the whole by piece, with the time of its products at ``speed``."""
    rows = TOKENS * TOP_K / (experts * tokens)
    per_row = {"second moments", "expert forward"}
    per_expert = {"folding", "factor", "gptq", "packing"}
    each = {name: value * 1e9 for name, value in speed.items()}
    alone = cost_of(*_whole(), TOKENS, 2 * 2048)
    found = []
    for label, spent in seconds.items():
        products = alone.piece_seconds(_PIECES.get(label, label), each)
        if label in per_row:
            hours = spent * rows * MOE_LAYERS
        elif label in per_expert:
            hours = spent * EXPERTS / experts * GPTQ_LAYERS
        else:
            # The first does not depend on tokens, the second takes so many of them at most.
            share = {"data-free rounding": 1.0, "fitted vectors": FIT_ROWS / tokens}
            hours = spent * share.get(label, TOKENS / tokens) * LAYERS
        found.append(
            {
                "piece": label,
                "measured_s": round(spent, 3),
                "core_hours": round(hours / 3600, 2),
                "products_alone": round(products / 3600, 2),
            }
        )
    return found


def _whole() -> tuple[Glm5Config, Plan]:
    """The release, and the plan that is extrapolated to: int4 experts by GPTQ."""
    config = Glm5Config.from_dict(json.loads(RELEASE.read_text()), source="GLM-5.2")
    recipe = CalibrationOptions(text="default").applied(recipe_file.preset("w4a8"))
    return config, make_plan(config, recipe)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experts", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--home", type=Path, help="directory for a gigabyte of scratch files")
    parser.add_argument("--dry", action="store_true", help="print only, add no row")
    options = parser.parse_args()
    torch.set_num_threads(1)
    home = Path(tempfile.mkdtemp(dir=options.home))
    watch = Watch()
    try:
        speed = {kind: rate / 1e9 for kind, rate in products(ARITHMETIC, _PRODUCT).items()}
        found = measure(home, options.experts, options.tokens)
    finally:
        shutil.rmtree(home)
    pieces = extrapolate(found["seconds"], options.experts, options.tokens, speed)
    row = {
        **provenance(["python", "-m", "tools.bench_calibration"]),
        "tokens": options.tokens,
        "experts": options.experts,
        "load": str(watch.load()),
        "gflops": {name: round(value, 1) for name, value in speed.items()},
        "pieces": pieces,
        "core_hours": round(sum(piece["core_hours"] for piece in pieces), 1),
        "products_alone": round(sum(piece["products_alone"] for piece in pieces), 1),
        "target_core_hours": _TARGET_HOURS,
        "memory_bytes": found["memory"],
        "memory_limit_bytes": _TARGET_BYTES,
        "layer_s": round(found["total"], 1),
    }
    print(json.dumps(row, indent=1))
    if not options.dry:
        with open(ROWS, "a", encoding="utf-8") as stream:
            stream.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()

"""Writes ``metrics.json`` and the model card next to an exported model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from small_glm5.data import MIX
from small_glm5.schedule import PHASES

CARD = """---
license: apache-2.0
language: [en]
tags: [glm_moe_dsa, test-model]
---
# small-glm5

A language model of the GLM-5.2 architecture (`glm_moe_dsa`), {millions:.2f} M parameters, trained
from scratch for the tests and the demo of glm5-ascend. It is a test object, not a useful model:
it has every part of the real thing (MLA, lightning indexer with IndexShare, sparse attention,
sigmoid-routed experts with correction bias, one MTP layer, tool-call tokens and chat template)
with weights that are trained, so that accuracy lost by quantisation can be measured.

## Shape

hidden 192, 7 layers + 1 MTP layer, first layer dense (512), 16 experts × 48 (top-4) + 1 shared,
4 heads (64 + 64 rope, value 64), q_lora 96, kv_lora 256, indexer 16 × 128 on layers 0, 1, 2, 6 and
the MTP layer, `index_topk` 64, vocabulary 2048 (byte-level BPE trained on the same text, special
tokens at the end), rope theta 8e6, all RMSNorm epsilons 1e-5 (the latent norms too; transformers
uses 1e-6 there). BF16 on disk, `e_score_correction_bias` F32. Nothing comes from another model.

## Metrics

Measured in F32 on the shipped (BF16-rounded) weights:
`python tools/train_small_glm5.py --evaluate {path}`

| | |
|---|---|
| held-out text, bytes / tokens | {heldout_bytes:,} / {heldout_tokens:,} |
| bytes per token | {bytes_per_token:.2f} |
| bits per byte, sparse, windows of {window_tokens} tokens | **{bits_per_byte_sparse:.4f}** |
| bits per byte, dense, same windows | {bits_per_byte_dense:.4f} |
| sparse / dense perplexity beyond position 64 | {sparse_dense_perplexity_ratio_beyond_topk:.4f} |
| MTP k = 1 acceptance, teacher forced on held-out text | {mtp_acceptance_teacher_forced:.1%} |
| MTP k = 1 acceptance on its own greedy text | {mtp_acceptance_greedy:.1%} |
| synthetic tool calls answered exactly (greedy, fresh names) | {tool_call_exact:.1%} |
| synthetic plain questions answered exactly (greedy) | {plain_answer_exact:.1%} |

Held out: the standard library packages `email`, `http` and `json` of Python 3.11.7
(`glm5_ascend/heldout.py` reads them from the running Python; another patch release differs
slightly). Their tests are not in the training data either, training files of which more than 20 %
of the 80-character windows occur in held-out text were dropped, and 0.55 % of the held-out windows
still occur somewhere in the training text (shared idioms, e.g. image header checks).

## Data

Python sources found on the training machine, no download. Shares of the training tokens:
{mix}; "chat" is a seeded generator of our own (tool calls with invented names and
short answers about Python builtins). Auto-generated, table-like and duplicate files were dropped,
`encodings` and `pydoc_data` everywhere. Bytes available to the sampler:

{sources}

## Training

Seed {seed}; {tokens:.1f} M tokens on one core of an AMD EPYC (Zen 4, BF16) in about 200 minutes:
`OMP_NUM_THREADS=1 python tools/train_small_glm5.py --work DIR` (resumable). Muon (0.02, momentum
0.95) for matrices, AdamW (2e-3) for the rest, plateau then linear decay to zero, MTP loss × 0.3,
auxiliary-loss-free expert balancing. Stages:

{stages}

"warmup" trains only the indexers, against the attention averaged over heads and over the layers
that share the index set (KL); "sparse" trains everything with the attention restricted to the
selected keys. "joint" alternates dense and sparse steps and lets the indexer loss reach the layers
below; "adapt" is sparse, and the indexers follow what the attention would be without the mask. The
last stage is what made the sparse model as good as the dense one: layers 3 to 5 reuse layer 2's
index set, and a loss on the selected keys alone cannot teach an indexer the keys that it misses
(sparse/dense ratio 1.12 before both stages, 1.11 after "joint").

The stage list was changed while the run was under way (the rate horizon was 3080 main steps until
step 1960 and 2770 after it); the later warmup stages train layer 2's indexer alone (layer 5's
attention weighted 4 times in two of them), and the sparse stages after the first keep the indexers
frozen. The first 130 joint steps trained layer 2's indexer only, at rate 0.3, and the next 60 all
but the MTP layer's, at 0.35. The run is seeded, but BF16 kernels differ between CPUs: expect close,
not bit-equal, results elsewhere.

## Limits

It imitates Python sources and answers only the question patterns it was trained on; sums in tool
answers are copied, not computed. Contexts beyond 1024 tokens were never seen in training. Small
and lightly trained: no outlier channels like those of large models, so low-bit formats look
easier here than on GLM-5.
"""


def write_card(out: Path, work: Path, metrics: dict[str, Any], seed: int) -> None:
    """Write ``metrics.json`` and ``README.md`` into ``out`` from measured numbers."""
    (out / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n", encoding="utf-8")
    sizes = json.loads((work / "sources.json").read_text(encoding="utf-8"))["bytes"]
    sources = "\n".join(f"- {name}: {size / 1e6:.2f} MB" for name, size in sizes.items())
    stages = "\n".join(
        f"- {p.kind}: {p.steps} steps of {p.rows} × {p.length} tokens, MTP {p.mtp}" for p in PHASES
    )
    text = CARD.format(
        **metrics,
        millions=metrics["parameters"] / 1e6,
        path="glm5_ascend/assets/small-glm5",
        mix=", ".join(f"{name} {share:.1%}" for name, share in MIX.items()),
        sources=sources,
        stages=stages,
        seed=seed,
        tokens=sum(p.steps * p.rows * p.length for p in PHASES) / 1e6,
    )
    (out / "README.md").write_text(text, encoding="utf-8")

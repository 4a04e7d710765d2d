#!/usr/bin/env python3
"""Train, export and evaluate the small GLM-5.2 style model (see its model card).

Full run (resumable with the same command, about 200 minutes on one core):
    OMP_NUM_THREADS=1 taskset -c 1 python tools/train_small_glm5.py --work /work/train
Evaluation of an exported model:
    python tools/train_small_glm5.py --evaluate glm5_ascend/assets/small-glm5
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "8192")
ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]
DEFAULT_OUT = ROOT / "glm5_ascend" / "assets" / "small-glm5"


def main() -> int:
    """Command line entry point."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path("train-small-glm5"))
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="final export")
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--smoke", action="store_true", help="a few tiny steps of every stage")
    parser.add_argument("--prepare-only", action="store_true", help="tokenizer, data, random model")
    parser.add_argument("--evaluate", type=Path, metavar="DIR", help="measure an exported model")
    parser.add_argument("--write-card", action="store_true", help="metrics.json and README.md")
    parser.add_argument("--min-bytes", type=int, default=0, help="held-out bytes (0: all)")
    args = parser.parse_args()

    if args.evaluate is not None or args.smoke:
        os.environ["SMALL_GLM5_COMPILE"] = "0"
    import torch

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.manual_seed(args.seed)
    if args.evaluate is not None:
        from small_glm5.card import write_card
        from small_glm5.evaluate import evaluate_dir

        metrics = evaluate_dir(args.evaluate, args.min_bytes)
        print(json.dumps(metrics, indent=2))
        if args.write_card:
            write_card(args.evaluate, args.work, metrics, args.seed)
        return 0
    from small_glm5.config import SmallConfig
    from small_glm5.data import prepare
    from small_glm5.export import export_random
    from small_glm5.schedule import PHASES, SMOKE
    from small_glm5.train import Trainer

    args.work.mkdir(parents=True, exist_ok=True)
    if not (args.work / "sources.json").exists():
        prepare(args.work, args.seed)
        tokenizer = args.work / "tokenizer"
        export_random(SmallConfig(), tokenizer, args.work / "random-small", args.seed)
    if args.prepare_only:
        return 0
    phases, tag = (SMOKE, "smoke") if args.smoke else (PHASES, "main")
    Trainer(args.work, args.seed, phases, tag).run(args.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

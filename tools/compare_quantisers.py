"""Compare this quantiser with others at equal schemes; fill the README's table.

``python -m tools.compare_quantisers`` quantises the small model with every contestant
(``tools/peers/contestants.py``), loads each result into this project's offline model, which
quantises activations as the NPU does, and measures KL to the BF16 model on text that nobody
calibrated on. Rows go to ``tools/results/quantisers.jsonl``. ``--render`` only renders, ``--check``
fails where README, rows and model do not belong together. A contestant without a result is
skipped with its reason, and a goal that lacks its peer is not reached.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import shlex
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from glm5_ascend.console import note
from glm5_ascend.demo import SMALL_MODEL
from tools.peers import inside_patches
from tools.peers.container import weights
from tools.peers.contestants import OURS, Contestant, Skipped, Workshop, contestants
from tools.peers.install import CACHE, PEERS
from tools.peers.table import README, ROWS, SAMPLES, last_runs, problems, rendered, tables
from tools.results_table import provenance, sha256

Row = dict[str, Any]

# Ours over the peer's best, mean KL to BF16; 1 on the random model.
GOALS = {
    ("msmodelslim", "w4a8"): 0.75,
    ("llm-compressor", "w4a8"): 0.75,
    ("msmodelslim", "w8a8"): 0.9,
    ("llm-compressor", "w8a8"): 0.9,
}
_REFERENCE = "bf16"
_MARGIN = 1.1
# As deep as GLM-5, random, 139 M parameters; nothing is trained, so its KL says little by itself.
DEPTH_TRUE = "tiny78"
_DEPTH_TRUE: dict[str, Any] = {
    "num_hidden_layers": 78,
    "first_k_dense_replace": 3,
    "hidden_size": 384,
    "intermediate_size": 768,
    "moe_intermediate_size": 64,
    "n_routed_experts": 16,
    "q_lora_rank": 96,
    "qk_nope_head_dim": 64,
    "v_head_dim": 64,
    "head_dim": 64,
    "index_topk": 64,
}


def measure(shop: Workshop, wanted: Sequence[Contestant], tokens: int, shared: Row) -> list[Row]:
    """One row per contestant: its metrics, or why it has none.

    Variants of a peer are screened first, on a tenth of the windows; only those close to its best
    are measured on all.
    """
    rows: dict[str, Row] = {}
    folders: dict[str, Path] = {}
    for contestant in wanted:
        row = rows[contestant.name] = {**shared, **_described(contestant, shop)}
        try:
            folder, cost = shop.build(contestant)
        except Skipped as reason:
            row["skipped"] = str(reason)
            note(f"skipped {contestant.name}: {reason}")
            continue
        row |= {"cost": asdict(cost), "schemes": _schemes(folder, shop.source)}
        folders[contestant.name] = folder
    screened = _recorded(shop, folders, tokens // 10, shared)
    names = _close_to_best(rows, screened)
    measured = _recorded(shop, {name: folders[name] for name in names}, tokens, shared)
    for name, found in screened.items():
        rows[name]["screened"] = {"tokens": tokens // 10, "kl_mean": _mean_kl(found)}
        rows[name] |= measured.get(name, {})
    return list(rows.values())


def _recorded(
    shop: Workshop, folders: Mapping[str, Path], tokens: int, shared: Row
) -> dict[str, Row]:
    """Scores on ``tokens`` tokens by name: from an earlier run in the same folder, or new."""
    files = {name: shop.work / f"{name}.scores-{tokens}.json" for name in folders}
    missing = {name: path for name, path in folders.items() if not files[name].is_file()}
    for name, found in _evaluated(shop.source, missing, tokens).items():
        when = {key: shared[key] for key in ("commit", "dirty")}
        files[name].write_text(json.dumps(when | found), encoding="utf-8")
    return {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items()}


def _close_to_best(rows: Mapping[str, Row], screened: Mapping[str, Row]) -> list[str]:
    """Ours, and of every peer and scheme what is within the margin, one of equal results."""
    best: dict[tuple[str, str], float] = {}
    for name, found in screened.items():
        key = rows[name]["tool"], rows[name]["scheme"]
        best[key] = min(_mean_kl(found), best.get(key, math.inf))
    kept: list[str] = []
    for name, found in screened.items():
        key = rows[name]["tool"], rows[name]["scheme"]
        is_copy = any(found["window_kl"] == screened[other]["window_kl"] for other in kept)
        if key[0] == OURS or (_mean_kl(found) <= _MARGIN * best[key] and not is_copy):
            kept.append(name)
    return kept


def _mean_kl(found: Row) -> float:
    value: float = found["metrics"]["kl_mean"]["value"]
    return value


def _evaluated(source: Path, folders: Mapping[str, Path], tokens: int) -> dict[str, Row]:
    """Text, metrics with intervals, and KL of every window, by name."""
    from glm5_ascend.quant.evaluation.windows import read_windows
    from glm5_ascend.simulator.evaluate import bootstrap, evaluate, summarise
    from glm5_ascend.simulator.model import OfflineModel
    from glm5_ascend.simulator.offline_metrics import WindowScore

    if not folders:
        return {}
    paths = {_REFERENCE: source, **folders}
    models = {name: OfflineModel.load(path) for name, path in paths.items()}
    text = read_windows(source, models[_REFERENCE].config, None, tokens)
    scores: dict[str, list[WindowScore]] = {name: [] for name in models}
    for name, score in evaluate(models, text.windows, reference=_REFERENCE):
        scores[name].append(score)
        if name == _REFERENCE and len(scores[name]) % 10 == 0:
            note(f"window {len(scores[name])} of {len(text.windows)}")
    found = {}
    for name in folders:
        intervals = bootstrap(scores[name])
        metrics = {
            key: {"value": value, "interval": list(intervals[key])}
            for key, value in summarise(scores[name]).as_dict().items()
            if not math.isnan(value)
        }
        windows = [float(score.kl.sum()) for score in scores[name]]
        found[name] = {"text": text.as_dict(), "metrics": metrics, "window_kl": windows}
    return found


def verdicts(rows: Sequence[Row]) -> Iterator[Row]:
    """Ours against the best of each peer, per scheme; a missing side is a goal not reached."""
    is_random = any(row.get("model") == DEPTH_TRUE for row in rows)
    for (tool, scheme), trained in GOALS.items():
        goal = 1.0 if is_random else trained
        ours, peer = (_best(rows, name, scheme) for name in (OURS, tool))
        row: Row = {"kind": "goal", "tool": tool, "scheme": scheme, "goal": goal, "reached": False}
        if ours is None or peer is None:
            row["missing"] = OURS if ours is None else tool
        else:
            row["ours"], row["peer"] = ours["name"], peer["name"]
            row["ratio"], row["interval"] = ratio(ours["window_kl"], peer["window_kl"])
            row["same_schemes"] = ours["schemes"] == peer["schemes"]
            row["reached"] = row["ratio"] <= goal and row["same_schemes"]
        yield row


def ratio(
    ours: Sequence[float], peer: Sequence[float], samples: int = 1000, seed: int = 0
) -> tuple[float, list[float]]:
    """Σ ours / Σ peer with its 95 % bootstrap interval; the same windows are drawn for both."""
    a, b = np.array(ours), np.array(peer)
    rows = np.random.default_rng(seed).integers(len(a), size=(samples, len(a)))
    low, high = np.quantile(a[rows].sum(1) / b[rows].sum(1), [0.025, 0.975])
    return float(a.sum() / b.sum()), [float(low), float(high)]


def _best(rows: Sequence[Row], tool: str, scheme: str) -> Row | None:
    found = [r for r in rows if r["tool"] == tool and r["scheme"] == scheme and "metrics" in r]
    return min(found, key=lambda r: r["metrics"]["kl_mean"]["value"], default=None)


def _described(contestant: Contestant, shop: Workshop) -> Row:
    row: Row = {
        "kind": "contestant",
        "name": contestant.name,
        "tool": contestant.tool,
        "scheme": contestant.scheme,
        "variant": contestant.variant,
        "options": shlex.join(contestant.options),
    }
    if contestant.tool in PEERS:
        row["version"] = PEERS[contestant.tool].version
        row["patches"] = inside_patches(PEERS[contestant.tool].script)
        row["calibration_sha256"] = sha256(shop.calibration)
    return row


def _schemes(folder: Path, source: Path) -> str:
    """Digest of the scheme of every matrix of the main model's layers that the source has."""
    known = weights(source)
    mtp = f"layers.{json.loads((source / 'config.json').read_text())['num_hidden_layers']}."
    found = {n: s for n, s in weights(folder).items() if n in known and mtp not in n}
    return hashlib.sha256(json.dumps(sorted(found.items())).encode()).hexdigest()[:16]


def depth_true(folder: Path) -> Path:
    """The generated model, written unless it is there."""
    from tests.support.tiny_model import write_tiny

    if not (folder / "model.safetensors").is_file():
        write_tiny(folder, tokenizer=True, **_DEPTH_TRUE)
    return folder


def collect(shop: Workshop, names: Sequence[str], tokens: int, command: Sequence[str]) -> list[Row]:
    """All rows of a run, contestants first."""
    shared: Row = {
        **provenance(command),
        "model": shop.source.name,
        "samples": shop.samples,
        "model_sha256": sha256(shop.source / "model.safetensors"),
    }
    wanted = [c for c in contestants() if not names or c.tool in names or c.name in names]
    rows = measure(shop, wanted, tokens, shared)
    return [*rows, *({**shared, **row} for row in verdicts(rows))]


def main(argv: Sequence[str]) -> int:
    """Command line entry."""
    parser = argparse.ArgumentParser(prog="tools.compare_quantisers", description=__doc__)
    parser.add_argument(
        "--model",
        type=Path,
        default=SMALL_MODEL,
        help=f"BF16 checkpoint of one file, or {DEPTH_TRUE}: 78 random layers, made here",
    )
    parser.add_argument("--venvs", type=Path, default=CACHE, help="environments of the peers")
    parser.add_argument("--work", type=Path, help="keep what is made here, and use it again")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="pieces of calibration text")
    parser.add_argument("--tokens", type=int, default=51_200, help="tokens of evaluation text")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="of tools, variants")
    parser.add_argument("--render", action="store_true", help="only fill README.md")
    parser.add_argument("--check", action="store_true", help="only compare")
    args = parser.parse_args(argv)
    if args.check:
        found = problems(README, ROWS, SMALL_MODEL)
        print("\n".join(found), file=sys.stderr, end="\n" if found else "")
        return int(bool(found))
    if not args.render:
        command = ["python", "-m", "tools.compare_quantisers", *argv]
        with tempfile.TemporaryDirectory(prefix="glm5-ascend-quantisers-") as temporary:
            work = args.work or Path(temporary)
            work.mkdir(parents=True, exist_ok=True)
            is_made = str(args.model) == DEPTH_TRUE
            model = depth_true(work / DEPTH_TRUE) if is_made else args.model
            shop = Workshop(model, work, args.venvs, args.samples)
            rows = collect(shop, args.only, args.tokens, command)
        with ROWS.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    table = tables(last_runs(ROWS, SMALL_MODEL.name))
    print(table)
    README.write_text(rendered(README.read_text(encoding="utf-8"), table), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

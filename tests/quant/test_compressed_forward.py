"""What vLLM's own compressed-tensors layers compute, beside a reference that shares no code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from glm5_ascend.demo import SMALL_MODEL
from tests.quant.conftest import quantize
from tests.simulator.engine import _ENVIRONMENT
from tests.support.oracle import AscendOracle
from tests.support.teacher_forced import step_errors
from tools.peers.container import from_compressed_tensors

pytestmark = pytest.mark.engine


def divergence(wanted: torch.Tensor, found: torch.Tensor) -> float:
    """Mean KL of the rows of two tables of logits."""
    ours, theirs = wanted.double().log_softmax(-1), found.double().log_softmax(-1)
    return float((ours.exp() * (ours - theirs)).sum(-1).mean())


def test_one_pass_of_the_trained_model(tmp_path: Path) -> None:
    export = quantize(SMALL_MODEL, tmp_path / "export", "w8a8", format="compressed-tensors")
    plain = from_compressed_tensors(export, tmp_path / "plain")
    seeded = torch.Generator().manual_seed(3)
    # Short ones: a tie of rounding moves every later step of its prompt.
    prompts = torch.randint(0, 2048, (12, 10), generator=seeded).tolist()
    words = [str(export), str(plain), json.dumps(prompts), str(tmp_path / "rows")]
    done = subprocess.run(
        [sys.executable, "-m", "tests.quant.compressed_worker", *words],
        cwd=Path(__file__).parents[2],
        env=os.environ | _ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = torch.load(tmp_path / "rows")
    wanted, other = (
        torch.cat([oracle.forward(tokens[:-1]).logits for tokens in prompts])
        for oracle in (AscendOracle(plain), AscendOracle(plain, activations=False))
    )
    errors = step_errors(found, wanted)
    print(
        "SHARE",
        (errors < 1e-4).double().mean(),
        (errors < 1e-3).double().mean(),
        errors.max(),
        step_errors(other, wanted).min(),
        divergence(wanted, found),
        divergence(wanted, other),
    )
    assert float((errors < 1e-4).double().mean()) >= 0.5
    assert float(errors.max()) < 0.2
    # Without the rounding of activations it is another function.
    assert float(step_errors(other, wanted).min()) > 1e-3
    assert divergence(wanted, found) < 0.05 * divergence(wanted, other)

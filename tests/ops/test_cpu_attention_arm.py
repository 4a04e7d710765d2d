"""Sparse flash attention compiled for ARM, run under an emulator."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from glm5_ascend import ops
from glm5_ascend.ops.native import DTYPES, compiler, isa
from glm5_ascend.ops.verify.requests import Requests
from tests.ops.attention_calls import Call, Shape
from tests.ops.native.cross import COMPILER, emulator

OPS = Path(ops.__path__[0])
REQUESTS = Requests("arm", ((3, 70), (0, 9), (5, 2), (2, 230)), seed=6)
LONG = Requests("long", ((1, 1300),), seed=7)
SHAPES = [Shape(6, 66, 16, 130), Shape(3, 17, 0, 40, block=4), Shape(9, 40, 9, 50)]
DTYPE = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Command of the emulated program."""
    command = emulator()
    neon = next(chosen for chosen in isa.INSTRUCTION_SETS if chosen.name == "neon")
    target = tmp_path_factory.mktemp("arm") / "attention"
    shared, own = OPS / "native" / "csrc", OPS / "sparse_flash_attention" / "csrc"
    words = [
        *(COMPILER, *compiler.FLAGS, *neon.flags, "-DG5_NEON=1", "-static", "-pthread"),
        *(f"-I{shared}", f"-I{own}", str(Path(__file__).with_name("attention_program.cpp"))),
        *map(str, own.glob("*.cpp")),
        *(str(shared / "pool.cpp"), "-o", str(target)),
    ]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return [command, str(target)]


def raw(tensor: Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def emulated(call: Call, program: list[str], folder: Path, threads: int) -> tuple[Tensor, ...]:
    """(out, max, sum) of ``call``."""
    given, shape, tokens = call.arguments(), call.shape, call.requests.tokens
    table, wide = given["block_table"], given.get("key_rope", given["key"][..., :0])
    cache = torch.cat((given["key"], wide), -1)
    lengths = torch.tensor(call.requests.lengths)
    starts = lengths[:, 0].cumsum(0) - lengths[:, 0]
    head = [threads, DTYPES[call.query.dtype], tokens, shape.heads, shape.latent, shape.rope]
    head += [cache.shape[0] * cache.shape[1], shape.count, shape.block]
    head += [len(lengths), shape.block_size, table.shape[1]]
    numbers = torch.cat((starts, lengths[:, 0], lengths[:, 1]))
    data = [np.array(head, np.int64).tobytes(), np.array([call.scale]).tobytes()]
    data += [raw(x) for x in (call.query, cache, numbers, call.indices, table)]
    (folder / "input").write_bytes(b"".join(data))
    files = [str(folder / name) for name in ("input", "output")]
    done = subprocess.run([*program, *files], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (done.returncode, done.stderr)
    result = bytearray((folder / "output").read_bytes())
    heads = tokens * shape.heads
    out = torch.frombuffer(result, dtype=call.query.dtype, count=heads * shape.latent)
    both = torch.frombuffer(result[-8 * heads :], dtype=torch.float32).view(2, tokens, shape.heads)
    return out.view(tokens, shape.heads, shape.latent), both[0], both[1]


@pytest.mark.parametrize("dtype", DTYPE, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_close_to_numpy_with_any_number_of_threads(
    shape: Shape, dtype: torch.dtype, program: list[str], tmp_path: Path
) -> None:
    call = Call(REQUESTS, shape, dtype)
    results = emulated(call, program, tmp_path, threads=1)
    call.check(results)
    again = emulated(call, program, tmp_path, threads=2)
    assert all(torch.equal(*pair) for pair in zip(results, again, strict=True))


def test_threads_share_the_keys_of_a_row(program: list[str], tmp_path: Path) -> None:
    call = Call(LONG, Shape(6, 66, 16, 1290), torch.bfloat16)
    results = emulated(call, program, tmp_path, threads=1)
    call.check(results)
    again = emulated(call, program, tmp_path, threads=2)
    assert all(torch.equal(*pair) for pair in zip(results, again, strict=True))

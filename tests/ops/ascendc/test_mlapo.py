"""The AscendC kernel of MLA pre-processing on the emulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from glm5_ascend import ops
from glm5_ascend.ops.emulator.errors import KernelHazard
from glm5_ascend.ops.emulator.launch import Options
from glm5_ascend.ops.emulator.report import Order, Report
from glm5_ascend.ops.errors import Declined
from glm5_ascend.ops.mlapo import emulated, reference
from glm5_ascend.ops.mlapo.arguments import Inputs, Outputs
from glm5_ascend.ops.mlapo.call import Call
from glm5_ascend.ops.mlapo.check import check
from glm5_ascend.ops.mlapo.emulated import Setting
from glm5_ascend.ops.mlapo.nz import fractal_nz
from glm5_ascend.ops.verify import suite
from glm5_ascend.ops.verify.case import Case as VerifyCase
from glm5_ascend.ops.verify.runner import public, run_one
from tests.ops.ascendc import mutants
from tests.ops.mlapo_cases import BLOCK, GLM5, Case, Formula, Shape

DIRECT = Options(isolated=False)
BF16, F16 = torch.bfloat16, torch.float16
TENSORS = [
    *("token_x", "weight_dq", "weight_uq_qr", "weight_uk", "weight_dkv_kr"),
    *("rmsnorm_gamma_cq", "rmsnorm_gamma_ckv", "rope_sin", "rope_cos", "kv_cache", "kr_cache"),
]
# Multiples of the fractal; the reduced tiles cut every one of them more than once.
PLAIN = Shape("plain", 256, 128, 4, 48, 64, 256)
NARROW = Shape("narrow", 256, 128, 4, 32, 64, 64)  # each product of W_UK has its own head
WIDE_X = Shape("wide-x", 512, 96, 2, 48, 64, 128)
LATENT = Shape("latent", 256, 64, 2, 32, 64, 512)
DEEP = Shape("deep", 256, 256, 4, 48, 64, 256)  # two AICs share K of the second product
SHORT_ROPE = Shape("short-rope", 96, 64, 6, 32, 16, 128)


@dataclass(frozen=True)
class Scene:
    """A case of ``mlapo`` on some blocks."""

    shape: Shape
    tokens: int
    scheme: str
    dtype: torch.dtype = BF16
    blocks: int = 2
    packed: bool = False
    int8_query: bool = False

    def arguments(self, seed: int = 0) -> dict[str, Any]:
        """Those of the public function, with caches of their own."""
        changes: dict[str, Any] = {"query_quant_mode": int(self.int8_query)}
        if self.packed:
            modes = ("ckvkr_repo_mode", "quant_scale_repo_mode")
            changes |= {"kv_cache_quant_mode": 3, **dict.fromkeys(modes, 1)}
            cache = torch.full((self.tokens // BLOCK + 3, BLOCK, 1, 656), 77, dtype=torch.int8)
            changes["kv_cache"] = cache
        return Case(self.shape, self.tokens, self.scheme, self.dtype, seed).fresh(**changes)


SCENES = {
    "float": Scene(PLAIN, 62, "float"),
    "dynamic": Scene(PLAIN, 62, "dynamic"),
    "dynamic_four": Scene(PLAIN, 62, "dynamic", blocks=4),
    "deep": Scene(DEEP, 50, "dynamic", blocks=4),
    "static": Scene(PLAIN, 40, "static", F16),
    "up": Scene(PLAIN, 20, "up", blocks=1),
    "heads": Scene(NARROW, 3, "float", blocks=1),
    "one": Scene(WIDE_X, 1, "dynamic"),
    "rope": Scene(SHORT_ROPE, 33, "static", blocks=3),
    "packed": Scene(LATENT, 20, "dynamic", blocks=1, packed=True, int8_query=True),
    "packed_half": Scene(LATENT, 70, "float", F16, packed=True, int8_query=True),
}


def checked(arguments: Mapping[str, Any]) -> Inputs:
    """What a backend gets of the public function's arguments."""
    rest = dict(arguments)
    return check(Call(*[rest.pop(name) for name in TENSORS], **rest))


def launched(scene: Scene, setting: Setting, seed: int = 0) -> Report:
    """Report of a launch, whose results are the reference's if it is clean."""
    call, twin = checked(scene.arguments(seed)), checked(scene.arguments(seed))
    outputs, report = emulated.run(call, setting)
    if report.clean:
        agree(outputs, call, reference.forward(twin), twin)
    return report


def agree(found: Outputs, call: Inputs, wanted: Outputs, twin: Inputs) -> None:
    """All but the rounding of a sum: the latents may fall on the other side of a tie, and queries
    follow them."""
    step = torch.finfo(call.dtype).eps
    pairs = [(getattr(found, name), getattr(wanted, name)) for name in Outputs.__slots__]
    pairs += [(call.kr_cache, twin.kr_cache)]
    if twin.kv_cache.dtype == torch.int8:
        same = call.kv_cache == twin.kv_cache
        assert same.all(-1).float().mean() > 0.9
    else:
        pairs += [(call.kv_cache, twin.kv_cache)]
    for ours, theirs in pairs:
        if theirs is None or ours is None:
            assert ours is theirs
        elif theirs.dtype == torch.int8:
            assert (ours.int() - theirs.int()).abs().max() <= 1
        else:
            size = theirs.float().nan_to_num(0).abs().max().item()
            torch.testing.assert_close(ours, theirs, rtol=0, atol=2 * step * size, equal_nan=True)
            assert (ours == theirs).sum() >= 0.97 * theirs.isfinite().sum()


@pytest.mark.parametrize("name", SCENES)
def test_both_schedulers_run_clean_and_right(
    name: str, seeds: range, record_property: Callable[[str, object], None]
) -> None:
    scene = SCENES[name]
    record_property("launches", 1 + len(seeds))
    for seed in seeds:
        options = replace(DIRECT, scheduler="random", seed=seed)
        setting = Setting(scene.blocks, options, small=True)
        assert launched(scene, setting, seed % 3).findings == ()
    assert launched(scene, Setting(scene.blocks, DIRECT, small=True)).findings == ()


def test_no_undefined_behaviour() -> None:
    for scene in SCENES.values():
        setting = Setting(scene.blocks, DIRECT, small=True, sanitize=True)
        assert launched(scene, setting).findings == ()


def test_every_mutant_is_reported(record_property: Callable[[str, object], None]) -> None:
    def run(scene: Scene, order: Order | None) -> Report:
        options = replace(DIRECT, disabled=order)
        call = checked(scene.arguments())
        return emulated.run(call, Setting(scene.blocks, options, small=True))[1]

    runs = {name: partial(run, scene) for name, scene in SCENES.items()}
    where = mutants.check(runs, set(), record_property)
    assert {order.kind for order in where} == {"barrier", "flag", "cross-flag"}


@pytest.mark.parametrize("scheme", ["float", "dynamic"])
def test_production_tiles_of_several_groups(scheme: str) -> None:
    """More tokens than a block or a group has, with the tiles of GLM-5's sizes."""
    for tokens, blocks in ((150, 1), (150, 6), (290, 6)):
        scene = Scene(PLAIN, tokens, scheme)
        report = launched(scene, Setting(blocks, DIRECT, small=False))
        assert report.findings == ()


@pytest.mark.slow
def test_two_blocks_at_full_size() -> None:
    """A group of GLM-5's sizes whose weights multiply two blocks of tokens."""
    setting = Setting(24, DIRECT, small=False)
    assert launched(Scene(GLM5, 200, "dynamic"), setting).findings == ()


def test_results_do_not_depend_on_the_number_of_blocks() -> None:
    scene = SCENES["dynamic"]
    found = [
        emulated.run(checked(scene.arguments()), Setting(blocks, DIRECT, small=True))[0]
        for blocks in (1, 2, 5, 24)
    ]
    for each in found[1:]:
        for name in ("query", "query_rope", "latent", "latent_scale"):
            assert torch.equal(getattr(each, name), getattr(found[0], name))


@pytest.mark.parametrize("scheme", ["float", "up", "dynamic", "static"])
def test_against_the_formula(scheme: str) -> None:
    """Through the public function, against NumPy in F64; queries from the codes that came back."""
    case = Case(PLAIN, 9, scheme, BF16)
    arguments = case.fresh()
    results = ops.mlapo(**arguments, backend="emulated")
    quantised = results[3].dtype == torch.int8
    codes = (results[3], results[4] if results[4].numel() else None) if quantised else None
    formula = Formula(case, np.float64, codes)
    wanted = {"query": formula.query, "query_rope": formula.query_rope}
    for ours, (name, theirs) in zip(results[:2], wanted.items(), strict=True):
        error = np.abs(ours.double().numpy() - theirs).max()
        assert error <= 2**-7 * np.abs(theirs).max(), name
    for name in ("kv_cache", "kr_cache"):
        theirs = formula.written(name)
        ours = arguments[name].double().numpy().reshape(theirs.shape)
        assert np.array_equal(np.isnan(ours), np.isnan(theirs))
        assert np.nanmax(np.abs(ours - theirs)) <= 2**-7 * np.nanmax(np.abs(theirs))


def test_caches_with_gaps_and_skipped_tokens() -> None:
    case = Case(PLAIN, 6, "float", BF16)
    arguments, twin = case.fresh(), case.fresh()
    blocks = arguments["kv_cache"].shape[0]
    whole = torch.full((blocks, 16, 1, 256 + 64 + 8), torch.nan, dtype=BF16)
    caches = {"kv_cache": whole[..., :256], "kr_cache": whole[..., 256:320]}
    ops.mlapo(**arguments | caches, backend="emulated")
    ops.mlapo(**twin, backend="reference")
    assert (arguments["cache_index"] == -1).any()
    torch.testing.assert_close(caches["kv_cache"], twin["kv_cache"], equal_nan=True)
    torch.testing.assert_close(caches["kr_cache"], twin["kr_cache"], equal_nan=True)
    assert whole[..., 320:].isnan().all()


def test_a_launch_with_a_finding_has_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = SCENES["heads"]
    report = emulated.run(checked(scene.arguments()), Setting(2, DIRECT, small=True))[1]
    barrier = next(order for order in report.orders if order.kind == "barrier")
    setting = Setting(2, replace(DIRECT, disabled=barrier), small=True)
    monkeypatch.setattr(emulated, "Setting", lambda: setting)
    with pytest.raises(KernelHazard, match="mlapo: RAW"):
        ops.mlapo(**scene.arguments(), backend="emulated")


@pytest.mark.parametrize(
    ("shape", "dtype", "reason"),
    [
        (PLAIN, torch.float32, "bfloat16 and float16, not torch.float32"),
        (replace(PLAIN, hidden=7680), BF16, "hidden sizes of .* up to 7168, not 7680"),
        (replace(PLAIN, hidden=104), BF16, "hidden sizes of whole 32-byte blocks .* not 104"),
        (replace(PLAIN, q_lora=100), BF16, "q_lora sizes .* not 100"),
        (replace(PLAIN, kv_lora=200), BF16, "kv_lora sizes .* not 200"),
        (replace(PLAIN, nope=40), BF16, "nope sizes .* not 40 and 64"),
        (replace(PLAIN, rope=80), BF16, "rope sizes of 16, 32, 48 and 64, not 48 and 80"),
        (replace(PLAIN, q_lora=2048, kv_lora=640), BF16, "at most 2688 columns .* not 2752"),
        (replace(PLAIN, heads=600), BF16, "at most 65535 columns .* not 67200"),
    ],
)
def test_declines_sizes_by_name(shape: Shape, dtype: torch.dtype, reason: str) -> None:
    with pytest.raises(Declined, match=f"the AscendC kernel of mlapo .*{reason}"):
        ops.mlapo(**Case(shape, 2, "float", dtype).fresh(), backend="emulated")


def test_declines_more_than_1024_tokens() -> None:
    with pytest.raises(Declined, match="1 to 1024 tokens, not 1025"):
        ops.mlapo(**Case(SHORT_ROPE, 1025, "float", BF16).fresh(), backend="emulated")


def test_nz_is_made_once_and_anew_after_a_write() -> None:
    weight = torch.arange(32 * 64).to(torch.int8).view(32, 64)
    made = fractal_nz(weight)
    rows, columns, c0 = np.mgrid[:2, :32, :32]
    assert np.array_equal(made.numpy(), weight.numpy()[columns, rows * 32 + c0])
    assert fractal_nz(weight) is made
    weight[3, 5] = 77
    assert fractal_nz(weight)[0, 3, 5] == 77
    both = fractal_nz(weight, weight[:16])
    assert torch.equal(both[:, 32:], both[:, :16])


def conforms(case: VerifyCase) -> None:
    result = run_one(case, case.problem(), "emulated", public("emulated"))
    if result.declined:
        assert case.dtype == torch.float32  # type: ignore[attr-defined]
    else:
        result.require()


CASES = [case for case in suite.cases("full") if case.operator == "mlapo"]


@pytest.mark.parametrize("case", [c for c in CASES if c.size == "quick"], ids=str)
def test_conforms(case: VerifyCase) -> None:
    conforms(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", [c for c in CASES if c.size != "quick"], ids=str)
def test_conforms_in_every_case_and_at_full_size(case: VerifyCase) -> None:
    conforms(case)

"""The work of ``glm5-ascend ops cost``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from glm5_ascend.files import make_folder, refuse_unwritable
from glm5_ascend.ops.emulator.cost_case import CostError, described, module, parse_shape
from glm5_ascend.ops.emulator.model import LIMIT, Estimate, estimate
from glm5_ascend.ops.emulator.rates import CHIPS, LAUNCH_HEAD, START_UPS, Chip, Sourced
from glm5_ascend.ops.emulator.recording import Recorder
from glm5_ascend.ops.emulator.timeline import svg


@dataclass(frozen=True)
class Cost:
    """An operator's estimate on a chip; ``picture`` is the timeline's file, if there is one."""

    operator: str
    chip: Chip
    estimate: Estimate
    floor: str
    picture: Path | None

    def as_dict(self) -> dict[str, Any]:
        """For programs; times in microseconds."""
        found = self.estimate
        return {
            "source": "modelled",
            "operator": self.operator,
            "chip": self.chip.name,
            "start_ups_us": START_UPS,
            "launch_head_us": LAUNCH_HEAD.value * found.launches,
            "bound": found.bound.name,
            "cube_peak": found.peak,
            "floor": self.floor,
            "extrapolated": found.emulated != (found.shape,),
            "picture": None if self.picture is None else str(self.picture),
            **asdict(found),
        }

    def as_text(self) -> str:
        """For people."""
        found, chip = self.estimate, self.chip
        lines = [
            f"{self.operator} {described(found.shape)} on {chip.name}: modelled, not measured",
            _chip(chip),
            *self._emulated(),
            "",
            f"  {'start-up per transfer to or from GM':36}" + _cells(START_UPS, "{:.1f} us"),
            f"  {'time without launch head':36}" + _cells(found.times),
            f"  {'largest bound of a pipe or memory':36}" + _cells(found.bounds),
            f"  {'time over that bound':36}"
            + _cells([t / b for t, b in zip(found.times, found.bounds, strict=True)], "{:.2f}x"),
            f"  {f'over the floor ({_which(found)})':36}"
            + _cells([t / found.floor for t in found.times], "{:.2f}x"),
            f"  {'time with the slower Fixpipe rate':36}" + _cells([found.slow_fixpipe]),
            "",
            f"  {'busiest':10}{'work':>10}{'busy':>10}  of the time  (us, no start-up)",
        ]
        for row in found.rows:
            mark = "  <- bound" if row is found.bound else ""
            share = 100 * row.busy / found.times[0]
            lines.append(f"  {row.name:10}{row.work:10.2f}{row.busy:10.2f}{share:11.0f} %{mark}")
        lines += [
            "",
            f"floor of bytes     {found.floor_bytes:10.2f} us: {self.floor}",
            f"floor of products  {found.floor_products:10.2f} us: {100 * found.peak:.1f} % of the "
            "cubes' peak is reached",
            f"HBM {found.hbm / 1e6:.1f} MB, L2 {found.l2 / 1e6:.1f} MB, workspaces "
            f"{found.workspace / 1e6:.1f} MB",
            f"launch head, apart: {found.launches} x {LAUNCH_HEAD.value:g} us [{LAUNCH_HEAD.mark}]",
        ]
        if found.workspace > chip.l2_bytes.value:
            lines.append("the workspaces exceed L2, which the model ignores: real time is longer")
        if self.picture is not None:
            lines.append(f"timeline: {self.picture}")
        return "\n".join(lines)

    def _emulated(self) -> list[str]:
        found = self.estimate
        if found.emulated == (found.shape,):
            return [f"emulated at this shape in {found.seconds:.1f} s"]
        shapes = " and ".join(described(shape) for shape in found.emulated)
        return [
            f"EXTRAPOLATED: emulated at {shapes} in {found.seconds:.1f} s;",
            "  every figure is from the straight line through both, over multiply-adds",
        ]


def _cells(values: Any, form: str = "{:.2f} us") -> str:
    return "".join(f"{form.format(value):>12}" for value in values)


def _which(found: Estimate) -> str:
    return "bytes" if found.floor_bytes >= found.floor_products else "products"


def _chip(chip: Chip) -> str:
    def cell(number: Sourced, scale: float, unit: str) -> str:
        return f"{number.value / scale:g} {unit} [{number.mark}]"

    return (
        f"{chip.cubes} AIC, {chip.vectors} AIV, {cell(chip.ghz, 1, 'GHz')}, HBM "
        f"{cell(chip.hbm, 1e12, 'TB/s')}, L2 {cell(chip.l2, 1e12, 'TB/s')}"
    )


def cost(
    operator: str, shape: str, chip: str, timeline: Path | None = None, limit: float = LIMIT
) -> Cost:
    """Emulate, replay with the chip's rates, and draw.

    Args:
        operator: one of ``cost_case.OPERATORS``.
        shape: as on the command line.
        chip: one of ``rates.CHIPS``.
        timeline: SVG file to write.
        limit: seconds of emulation above which smaller shapes stand in.

    Raises:
        CostError: the shape, or a file that cannot be written.
        BackendUnavailable: the operator has no kernel, or there is no compiler.
    """
    sizes = parse_shape(operator, shape)
    if timeline is not None:
        refuse_unwritable(timeline)
    found, recorder = estimate(operator, sizes, CHIPS[chip], limit)
    if timeline is not None:
        picture = _picture(operator, chip, found, recorder)
        try:
            make_folder(timeline)
            timeline.write_text(picture, encoding="utf-8")
        except OSError as error:
            raise CostError(
                f"{timeline} cannot be written: {error.strerror}", "name another file"
            ) from None
    return Cost(operator, CHIPS[chip], found, module(operator).case(sizes).floor, timeline)


def _picture(operator: str, chip: str, found: Estimate, recorder: Recorder) -> str:
    """Of the longest launch."""
    longest = max(recorder.launches, key=lambda launch: launch.report.models[0].cycles)
    title = f"{operator} {described(found.emulated[0])} on {chip}: {longest.kernel}"
    return svg(title, longest.report.models[0], CHIPS[chip])

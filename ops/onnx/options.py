"""What ``glm5-ascend export`` can be asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from glm5_ascend.errors import ExitCode, Glm5Error

What = Literal["lightning_indexer", "sparse_flash_attention", "mlapo", "layer"]
Dtype = Literal["float32", "float16", "bfloat16"]
Layout = Literal["BSND", "PA_BSND"]
Scheme = Literal["FLOAT", "W8A8", "W8A8_DYNAMIC"]
_SCHEMES: dict[str, Scheme] = {
    "float": "FLOAT",
    "w8a8": "W8A8",
    "w8a8-dynamic": "W8A8_DYNAMIC",
}
_OPTION_OF: dict[str, tuple[What, ...]] = {
    "layer": ("layer",),
    "layout": ("lightning_indexer", "sparse_flash_attention"),
    "dtype": ("lightning_indexer", "sparse_flash_attention", "mlapo"),
    "weights": ("mlapo",),
}
_HELP = "see `glm5-ascend export --help`"


class OptionError(Glm5Error):
    """Options that do not go together."""

    exit_code = ExitCode.USAGE


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What the command line was asked for.

    Attributes:
        what: the operator, or a decoder layer.
        output: file to write.
        model: checkpoint of the layer; for an operator, the model whose sizes it takes, None for
            those of GLM-5.
        layer: index of the layer; None for operators.
        layout: padded batches, or packed queries and paged caches; operators only.
        dtype: of an operator's float inputs and outputs; a layer is float32.
        weights: scheme of the weights of mlapo.
        overwrite: replace an existing file.
    """

    what: What
    output: Path
    model: Path | None = None
    layer: int | None = None
    layout: Layout = "BSND"
    dtype: Dtype = "float32"
    weights: Scheme = "FLOAT"
    overwrite: bool = False


def options_of(
    *,
    what: What,
    output: Path,
    model: Path | None,
    layer: int | None,
    layout: Layout | None,
    dtype: Dtype | None,
    weights: str | None,
    overwrite: bool,
) -> ExportOptions:
    """The options as the command line gives them, None where it does not.

    Raises:
        OptionError: an option that ``what`` does not have, or lacks.
    """
    if what == "layer" and (model is None or layer is None):
        raise OptionError("a layer needs --model DIR and --layer N", _HELP)
    given = {"layer": layer, "layout": layout, "dtype": dtype, "weights": weights}
    for name, value in given.items():
        if value is not None and what not in _OPTION_OF[name]:
            owners = " and ".join(_OPTION_OF[name])
            raise OptionError(f"--{name} is for {owners} only", _HELP)
    return ExportOptions(
        what,
        output,
        model,
        layer,
        layout or "BSND",
        dtype or "float32",
        _SCHEMES[weights or "float"],
        overwrite,
    )

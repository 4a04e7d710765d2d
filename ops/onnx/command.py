"""``glm5-ascend export``: options in, an ONNX file and a summary out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import helper, parser

from glm5_ascend import env
from glm5_ascend.checkpoint import CheckpointReader
from glm5_ascend.config import Glm5Config
from glm5_ascend.console import format_bytes
from glm5_ascend.errors import Glm5Error
from glm5_ascend.files import make_folder, present, refuse_unwritable
from glm5_ascend.ops.lightning_indexer import onnx_graph as lightning_indexer
from glm5_ascend.ops.mlapo import onnx_graph as mlapo
from glm5_ascend.ops.onnx.functions import with_functions
from glm5_ascend.ops.onnx.layer import build_layer
from glm5_ascend.ops.onnx.names import DOMAIN, OPSET
from glm5_ascend.ops.onnx.options import ExportOptions
from glm5_ascend.ops.onnx.save import data_file, save
from glm5_ascend.ops.onnx.sizes import Sizes
from glm5_ascend.ops.onnx.weights import LayerWeights, Weight
from glm5_ascend.ops.sparse_flash_attention import onnx_graph as sparse_flash_attention

_ONNX_DTYPE: dict[str, str] = {"float32": "float", "float16": "float16", "bfloat16": "bfloat16"}
_HF_LATENT_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a model; text in ``shape`` is a dynamic axis."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Summary:
    """What was written."""

    files: tuple[Path, ...]
    nbytes: int
    functions: tuple[str, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    def as_dict(self) -> dict[str, object]:
        """The summary as one JSON object."""
        return {
            "schema": 1,
            "files": [str(file) for file in self.files],
            "bytes": self.nbytes,
            "opset": OPSET,
            "domain": DOMAIN,
            "functions": list(self.functions),
            "inputs": [_port(port) for port in self.inputs],
            "outputs": [_port(port) for port in self.outputs],
        }

    def as_text(self) -> str:
        """A few lines for people."""
        return "\n".join(
            (
                f"{' + '.join(map(str, self.files))}: {format_bytes(self.nbytes)}, opset {OPSET}",
                f"functions of {DOMAIN}: {', '.join(self.functions)}",
                *(f"in   {port}" for port in self.inputs),
                *(f"out  {port}" for port in self.outputs),
            )
        )


def run(options: ExportOptions) -> Summary:
    """Export one operator or layer.

    Raises:
        Glm5Error: see its subclasses; nothing was written.
    """
    _check_output(options)
    if options.what == "layer":
        if options.model is None or options.layer is None:
            raise ValueError("a layer needs a model and an index")
        with CheckpointReader(options.model) as reader:
            _check_layer(reader.config, options.layer, options.model)
            weights = LayerWeights(reader, options.layer)
            graph, constants = build_layer(weights, options.layer, _latent_eps(reader.config))
            return _write(graph, constants, options.output)
    sizes = Sizes() if options.model is None else Sizes.of(Glm5Config.from_dir(options.model))
    return _write(parser.parse_graph(_operator(options, sizes)), (), options.output)


def _operator(options: ExportOptions, sizes: Sizes) -> str:
    dtype, paged = _ONNX_DTYPE[options.dtype], options.layout == "PA_BSND"
    if options.what == "lightning_indexer":
        return lightning_indexer.graph(sizes, dtype, paged=paged)
    if options.what == "sparse_flash_attention":
        return sparse_flash_attention.graph(sizes, dtype, paged=paged)
    return mlapo.graph(sizes, dtype, options.weights, options.weights)


def _write(graph: onnx.GraphProto, weights: Sequence[Weight], output: Path) -> Summary:
    model = with_functions(graph)
    make_folder(output)
    nbytes = save(model, weights, output)
    beside = data_file(output)
    external = any(tensor.external_data for tensor in model.graph.initializer)
    return Summary(
        files=(output, beside) if external else (output,),
        nbytes=nbytes,
        functions=tuple(function.name for function in model.functions),
        inputs=tuple(map(_describe, model.graph.input)),
        outputs=tuple(map(_describe, model.graph.output)),
    )


def _check_output(options: ExportOptions) -> None:
    # Also what keeps --overwrite from replacing a file that is no export.
    if options.output.suffix != ".onnx":
        raise Glm5Error(f"{options.output} is not named as an ONNX file", "end its name in .onnx")
    for file in (options.output, data_file(options.output)):
        if present(file) and not file.is_file():
            raise Glm5Error(f"{file} exists and is no file", "choose another name")
        if present(file) and not options.overwrite:
            raise Glm5Error(
                f"{file} exists already",
                "choose another name, or replace the file with --overwrite",
            )
    try:
        refuse_unwritable(options.output)
    except OSError as error:
        raise Glm5Error(
            f"cannot write {options.output}: {error.strerror}", "name a file in a folder of yours"
        ) from error


def _check_layer(config: Glm5Config, layer: int, model: Path) -> None:
    if not 0 <= layer < config.layer_count:
        mtp = config.num_nextn_predict_layers
        drafts = f", MTP {config.num_hidden_layers}" if mtp else ""
        raise Glm5Error(
            f"{model} has no layer {layer}",
            f"its decoder layers are 0 to {config.num_hidden_layers - 1}{drafts}",
        )


def _latent_eps(config: Glm5Config) -> float:
    if env.read("GLM5_ASCEND_LATENT_EPS") == "hf":
        return _HF_LATENT_EPS
    return config.rms_norm_eps


def _describe(value: onnx.ValueInfoProto) -> Port:
    tensor = value.type.tensor_type
    return Port(
        value.name,
        helper.tensor_dtype_to_string(tensor.elem_type).removeprefix("TensorProto.").lower(),
        tuple(d.dim_param or d.dim_value for d in tensor.shape.dim),
    )


def _port(port: Port) -> dict[str, object]:
    return {"name": port.name, "dtype": port.dtype, "shape": list(port.shape)}

"""The tensors that a repair computes: from others of the checkpoint, or from its source."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glm5_ascend.ascend_schemes import ROTATION
from glm5_ascend.checkpoint import TensorSpec
from glm5_ascend.quant.backend import REFERENCE
from glm5_ascend.quant.convert import as_bytes, convert, read_matrix
from glm5_ascend.quant.folding import fold_of
from glm5_ascend.quant.packing import unpack_rows
from glm5_ascend.quant.recipe import DtypeName, Recipe, Rule, Step, recycled_step, steps
from glm5_ascend.quant.repair_draft import Bytes, Draft, NewTensor
from glm5_ascend.quant.rotation import on_columns, recycled_state
from glm5_ascend.quant.scheme import Scheme
from glm5_ascend.quant.verify_source import Comparison
from glm5_ascend.quant.verify_values import Codes, Values, expected_bias
from glm5_ascend.verify.folder import Folder
from glm5_ascend.verify.inventory import VOCABULARY

_MATCH = 1e-4
_CHUNK_ROWS = 4096
_NEEDS_SOURCE = "it follows from the source only; give --source"
_UNLIKE = "the source is of another model, or the rotation is not known here"


def copied(folder: Folder, name: str) -> Bytes:
    """The bytes of a stored tensor."""
    return lambda: Values(folder).raw(name)


def bias_of(folder: Folder, name: str, spec: TensorSpec) -> Bytes:
    """``scale_bias`` of the shape ``spec`` from the codes and scales beside it."""
    return lambda: as_bytes(expected_bias(_codes(folder, name), spec.shape[1])[0].float(), spec)


def bias_matches(folder: Folder, name: str) -> bool:
    """Whether the one column of a ``scale_bias`` is the sum that codes and scales give."""
    pair = _codes(folder, name)
    wanted, reach = expected_bias(pair, 1)
    apart = (Values(folder).tensor(name).double() - wanted).abs()
    return bool((apart <= _MATCH * reach).all())


def static_part(folder: Folder, name: str) -> NewTensor | None:
    """``deq_scale`` or ``quant_bias`` of a static linear; None if its other parts do not tell."""
    module, _, part = name.rpartition(".")
    values = Values(folder)
    if part == "deq_scale" and {f"{module}.input_scale", f"{module}.weight_scale"} <= set(
        folder.tensors
    ):
        spec = TensorSpec((folder.spec(f"{module}.weight_scale").shape[0],), "F32")

        def product() -> memoryview:
            step = values.tensor(f"{module}.input_scale").double().reshape(())
            scale = values.tensor(f"{module}.weight_scale").double()[:, 0]
            return as_bytes((step * scale).float(), spec)

        return NewTensor(spec, product)
    if part == "quant_bias" and {f"{module}.input_offset", f"{module}.weight"} <= set(
        folder.tensors
    ):
        whole = TensorSpec((folder.spec(f"{module}.weight").shape[0],), "I32")

        def bias() -> memoryview:
            offset = values.tensor(f"{module}.input_offset").double().reshape(())
            sums = values.tensor(f"{module}.weight").sum(1, dtype=torch.int64).double()
            exact = torch.round(-offset * sums).to(torch.int32)
            flat: NDArray[np.uint8] = exact.view(torch.uint8).numpy()
            return flat.data

        return NewTensor(whole, bias)
    return None


def vocabulary_copy(draft: Draft, name: str) -> NewTensor | str:
    """The MTP layer's embedding or head; a sentence why not.

    The embedding is the main one in every basis. So is the head of an unrotated checkpoint; a
    rotated one carries the norm in front of it, which differs between main model and MTP layer.
    """
    folder = draft.folder
    main = "lm_head.weight" if name.endswith(VOCABULARY[1]) else "model.embed_tokens.weight"
    if main not in folder.tensors:
        return f"{main} is not stored either"
    spec = folder.spec(main)
    if main == "model.embed_tokens.weight" or not _is_rotated(draft):
        return NewTensor(spec, copied(folder, main))
    comparison = _comparison(draft)
    if isinstance(comparison, str):
        return comparison
    if not comparison.matrices:
        return NewTensor(spec, copied(folder, main))
    return NewTensor(spec, lambda: as_bytes(_head(comparison, name), spec))


def recycled(draft: Draft) -> NewTensor | str:
    """``rot.weight`` from the source's final norm; a sentence why not."""
    comparison = _comparison(draft)
    if isinstance(comparison, str):
        return comparison
    if not comparison.matrices:
        return "the weights are not rotated, so is_rot_used is wrong: set it to false"
    width = draft.plan.config.hidden_size
    spec = TensorSpec((width, width), "F32" if draft.plan.config.dtype == "float32" else "BF16")

    def state() -> memoryview:
        gamma = read_matrix(comparison.reader, "model.norm.weight")
        return as_bytes(recycled_state(gamma, comparison.matrices["R1"]), spec)

    return NewTensor(spec, state)


def mtp_layer(draft: Draft) -> dict[str, NewTensor] | str:
    """The whole MTP layer in float, in the basis of the checkpoint; a sentence why not."""
    comparison = _comparison(draft)
    if isinstance(comparison, str):
        return comparison
    reader, rotated = comparison.reader, bool(comparison.matrices)
    if not reader.config.num_nextn_predict_layers:
        return "the source has no MTP layer either"
    dtype: DtypeName = "float32" if reader.config.dtype == "float32" else "bfloat16"
    # Quantised elsewhere, so that the MTP layer comes with its own embedding and head.
    rules = (Rule(("*",), Scheme.W8A8_DYNAMIC),)
    recipe = Recipe("repair", rules, rotate=rotated, dtype=dtype, mtp="float")
    prefix = f"model.layers.{reader.config.num_hidden_layers}."
    wanted = [step for step in steps(reader.config, recipe) if step.name.startswith(prefix)]
    if rotated and ROTATION not in draft.folder.tensors:
        wanted.append(recycled_step(reader.config, recipe))
    made = {
        step.name: NewTensor(step.stored[step.name], _converted(comparison, step))
        for step in wanted
    }
    # Equal to the main embedding bit for bit, whoever rotated that.
    embedding = f"{prefix}{VOCABULARY[0]}"
    copy = vocabulary_copy(draft, embedding)
    return made if isinstance(copy, str) or embedding not in made else made | {embedding: copy}


def _converted(comparison: Comparison, step: Step) -> Bytes:
    def data() -> memoryview:
        made = convert(comparison.reader, step, comparison.matrices, backend=REFERENCE)
        return next(iter(made))[1]

    return data


def _is_rotated(draft: Draft) -> bool:
    return draft.folder.setting("is_rot_used") is True


def _comparison(draft: Draft) -> Comparison | str:
    if draft.source is None:
        return _NEEDS_SOURCE
    values = Values(draft.folder)
    found = Comparison.start(draft.source, draft.plan.config, values, draft.schemes)
    return _UNLIKE if found is None else found


def _head(comparison: Comparison, name: str) -> Tensor:
    """``W · diag(γ of shared_head.norm) · R1`` in pieces of rows."""
    fold = fold_of(comparison.config, name)
    reader = comparison.reader
    gamma = read_matrix(reader, fold.norms[0])
    rows, width = reader.spec("lm_head.weight").shape
    dtype = torch.float32 if comparison.config.dtype == "float32" else torch.bfloat16
    result = torch.empty(rows, width, dtype=dtype)
    for start in range(0, rows, _CHUNK_ROWS):
        part = slice(start, min(start + _CHUNK_ROWS, rows))
        matrix = read_matrix(reader, "lm_head.weight", part) * gamma
        if fold.columns is not None:
            matrix = on_columns(matrix, fold.columns, comparison.matrices)
        result[part] = matrix.to(dtype)
    return result


def _codes(folder: Folder, bias: str) -> Codes:
    module = bias.removesuffix("scale_bias")
    values = Values(folder)
    codes = unpack_rows(values.tensor(f"{module}weight"))
    return Codes(codes, values.tensor(f"{module}weight_scale").double())

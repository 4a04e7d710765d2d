"""Compare the stored tensors with those that configuration and description demand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from glm5_ascend.ascend_schemes import FLOAT, ROTATION, W4A8_DYNAMIC, W8A8, W8A8_DYNAMIC
from glm5_ascend.checkpoint_inventory import TensorSpec, expected_tensors
from glm5_ascend.config import Glm5Config
from glm5_ascend.verify.folder import Folder
from glm5_ascend.verify.layouts import (
    CHANNEL,
    FLOATS,
    GROUPS,
    UNPACKED,
    Part,
    parts_of,
)

_ROTATIONS_OF_CACHE = (".indexer.q_rot", ".indexer.k_rot")
VOCABULARY = ("embed_tokens.weight", "shared_head.head.weight")


def model_tensors(config: Glm5Config) -> dict[str, TensorSpec]:
    """Tensors of the model before quantisation, with the MTP layers' own embedding and head."""
    tensors = expected_tensors(replace(config, fp8=None))
    vocabulary = tensors["lm_head.weight"]
    for layer in range(config.num_hidden_layers, config.layer_count):
        for copy in VOCABULARY:
            tensors[f"model.layers.{layer}.{copy}"] = vocabulary
    return tensors


def is_vocabulary_copy(config: Glm5Config, name: str) -> bool:
    """Whether ``name`` is the MTP layer's embedding or head."""
    first = config.num_hidden_layers
    return name.startswith(f"model.layers.{first}.") and name.endswith(VOCABULARY)


def check_plain(folder: Folder, config: Glm5Config) -> None:
    """An unquantised checkpoint, BF16 or FP8: exactly the tensors of the release."""
    expected = expected_tensors(config)
    copies = set(model_tensors(config)) - set(expected_tensors(replace(config, fp8=None)))
    for name in sorted(copies):
        if name not in folder.tensors:
            folder.note("mtp-vocabulary", name)
    for name, spec in expected.items():
        dtypes = FLOATS if spec.dtype in FLOATS else (spec.dtype,)
        _compare(folder, name, Part((spec.shape,), dtypes), "tensor-missing")
    for name in folder.tensors:
        if name not in expected and name not in copies:
            folder.note("tensor-unknown", name, f"in {folder.tensors[name].file.name}")


def check_quantised(
    folder: Folder,
    config: Glm5Config,
    model: Mapping[str, TensorSpec],
    schemes: Mapping[str, str | None],
) -> set[str]:
    """Every tensor of every scheme: present, of its shape and dtype, and no other.

    Args:
        folder: the checkpoint.
        config: its configuration.
        model: tensors before quantisation.
        schemes: scheme of each of ``model``; None where its tensors are not looked into.

    Returns:
        Names that belong to the model.
    """
    layout, group = int4_layout(folder, schemes)
    known: set[str] = set()
    opaque: list[str] = []
    for name, spec in model.items():
        scheme = schemes[name]
        if scheme is None:
            opaque.append(name.removesuffix("weight"))
            continue
        if scheme == FLOAT:
            known.add(name)
            rule = "mtp-vocabulary" if is_vocabulary_copy(config, name) else "tensor-missing"
            _compare(folder, name, Part((spec.shape,), FLOATS), rule)
            continue
        module = name.removesuffix("weight")
        shape = spec.shape[0], spec.shape[1]
        for suffix, part in parts_of(name, shape, scheme, layout, group).items():
            known.add(module + suffix)
            if part.required or module + suffix in folder.tensors:
                _compare(folder, module + suffix, part, _missing_rule(suffix, scheme))
    known |= _rotation(folder, config)
    for name in folder.tensors:
        if name in known or name.startswith(tuple(opaque)):
            continue
        if not name.endswith(_ROTATIONS_OF_CACHE):
            folder.note("tensor-unknown", name, f"in {folder.tensors[name].file.name}")
    return known


def int4_layout(folder: Folder, schemes: Mapping[str, str | None]) -> tuple[str, int]:
    """Layout of the int4 experts and their group size: the tensors count more than the keys."""
    size = folder.setting("group_size")
    group = size if isinstance(size, int) and not isinstance(size, bool) else 0
    names = [n.removesuffix("weight") for n, s in schemes.items() if s == W4A8_DYNAMIC]
    if group > 0 and names and all(f"{n}weight_scale_second" in folder.tensors for n in names):
        return GROUPS, group
    old = folder.setting("version") in (None, "0")
    if old and names and not any(f"{n}scale_bias" in folder.tensors for n in names):
        return UNPACKED, group
    return CHANNEL, group


def stored_scheme(folder: Folder, name: str) -> str:
    """The scheme that the tensors stored for a weight are of."""
    module = name.removesuffix("weight")
    if name not in folder.tensors or folder.spec(name).dtype != "I8":
        return FLOAT
    if f"{module}scale_bias" in folder.tensors:
        return W4A8_DYNAMIC
    return W8A8 if f"{module}deq_scale" in folder.tensors else W8A8_DYNAMIC


def _missing_rule(suffix: str, scheme: str) -> str:
    if suffix == "weight":
        return "tensor-missing"
    if scheme == W8A8:
        return "static-missing"
    return "scale-bias-missing" if suffix == "scale_bias" else "scale-missing"


def _compare(folder: Folder, name: str, part: Part, missing: str) -> None:
    if name not in folder.tensors:
        folder.note(missing, name)
        return
    found = folder.spec(name)
    if found.dtype not in part.dtypes:
        rule, wanted = "dtype", " or ".join(part.dtypes)
        if part.dtypes == FLOATS and found.dtype in ("I8", "U8") and name.endswith(".weight"):
            rule = "int8-in-float"
        elif part.dtypes == ("I8",) and found.dtype in FLOATS:
            rule = "float-in-int8"
        folder.note(rule, name, f"is {found.dtype}, expected {wanted}")
    elif found.shape not in part.shapes:
        wanted_shape = part.shapes[0]
        rule = "shape"
        if name.endswith(".scale_bias") and found.shape == (wanted_shape[0], 1):
            rule = "scale-bias-columns"
        elif len(wanted_shape) == 2 and found.shape == wanted_shape[:1] and wanted_shape[1] == 1:
            rule = "scale-axis"
        elif part.dtypes == ("I8",) and _is_unpacked(found.shape, wanted_shape):
            rule = "int4-unpacked"
        shape = f"has shape {list(found.shape)}, expected {list(wanted_shape)}"
        folder.note(rule, name, shape)


def _is_unpacked(found: tuple[int, ...], packed: tuple[int, ...]) -> bool:
    full = (2 * packed[0], packed[1])
    return found in (full, (full[0], full[1] // 2))


def _rotation(folder: Folder, config: Glm5Config) -> set[str]:
    announced = folder.setting("is_rot_used") is True
    if ROTATION in folder.tensors:
        shape = (config.hidden_size, config.hidden_size)
        _compare(folder, ROTATION, Part((shape,), FLOATS), "rotation-missing")
        if not announced:
            folder.note("rotation-unannounced", ROTATION)
    elif announced and config.num_nextn_predict_layers:
        folder.note("rotation-missing", ROTATION)
    return {ROTATION}

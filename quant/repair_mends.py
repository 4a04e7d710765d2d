"""What mends each condition that can be mended, one function per rule."""

from __future__ import annotations

from collections.abc import Callable

from glm5_ascend.ascend_schemes import AUXILIARY, FLOAT, ROTATION, W4A8_DYNAMIC
from glm5_ascend.checkpoint import TensorSpec
from glm5_ascend.config_schedule import FULL
from glm5_ascend.files import DESCRIPTION_FILE
from glm5_ascend.quant.repair_draft import Draft, NewTensor
from glm5_ascend.quant.repair_tensors import (
    bias_matches,
    bias_of,
    copied,
    mtp_layer,
    recycled,
    static_part,
    vocabulary_copy,
)
from glm5_ascend.verify.config_checks import (
    FREQUENCY,
    OFFSET,
    SCHEDULE_KEYS,
    stored_schedule,
)
from glm5_ascend.verify.findings import Condition
from glm5_ascend.verify.folder import INDEX, Folder
from glm5_ascend.verify.inventory import model_tensors, stored_scheme
from glm5_ascend.verify.layouts import DOWN_COLUMNS

CONFIG = "config.json"


def _described(folder: Folder, name: str) -> dict[str, object]:
    """Entries of a tensor of the model and of the parts stored beside it, by what they are."""
    scheme = stored_scheme(folder, name)
    if scheme == FLOAT:
        return {name: FLOAT}
    module = name.removesuffix("weight")
    parts = [module + part for part in AUXILIARY if module + part in folder.tensors]
    return dict.fromkeys((name, *parts), scheme)


def _undescribed(draft: Draft, found: list[Condition]) -> None:
    names = [condition.subject for condition in found]
    for name in names:
        owner = f"{name.rpartition('.')[0]}.weight"
        if name in draft.schemes:
            draft.describe(_described(draft.folder, name))
        else:
            draft.describe({name: draft.schemes.get(owner) or stored_scheme(draft.folder, owner)})
    draft.mend(found[0].rule, f"describe {len(names):,} tensors, the first {names[0]}")


def _undescribed_mtp(draft: Draft, found: list[Condition]) -> None:
    stored = [c.subject for c in found if c.subject in draft.folder.tensors]
    for name in stored:
        draft.describe(_described(draft.folder, name))
    draft.mend(found[0].rule, f"describe the {len(stored):,} weights of the MTP layer")


def _no_description(draft: Draft, found: list[Condition]) -> None:
    model = model_tensors(draft.plan.config)
    lost = [name for name in model if name not in draft.folder.tensors]
    for name in lost:
        draft.refuse(Condition(found[0].rule, name), "is not stored, so no description can help")
    for name in model:
        draft.describe(_described(draft.folder, name))
    schemes = {stored_scheme(draft.folder, name) for name in model}
    rotated = ROTATION in draft.folder.tensors
    draft.describe({"version": "1.0.0", "group_size": 0, "is_rot_used": rotated})
    kind = W4A8_DYNAMIC if W4A8_DYNAMIC in schemes else "W8A8_DYNAMIC"
    draft.describe({"model_quant_type": kind})
    draft.mend(found[0].rule, f"write {DESCRIPTION_FILE} from the {len(model):,} tensors")


def _key(key: str, value: object) -> Callable[[Draft, list[Condition]], None]:
    def mend(draft: Draft, found: list[Condition]) -> None:
        draft.describe({key: value})
        draft.mend(found[0].rule, f"set {key} to {value!r} in {DESCRIPTION_FILE}")

    return mend


def _forget(draft: Draft, found: list[Condition]) -> None:
    draft.describe({condition.subject: None for condition in found})
    draft.mend(found[0].rule, f"remove {len(found):,} keys, the first {found[0].subject}")


def _follow_weight(draft: Draft, found: list[Condition]) -> None:
    for condition in found:
        owner = f"{condition.subject.rpartition('.')[0]}.weight"
        draft.describe({condition.subject: draft.schemes[owner]})
    draft.mend(found[0].rule, f"give {len(found):,} parts the scheme of their weight")


def _norm_bias(draft: Draft, found: list[Condition]) -> None:
    names = [name for name in draft.folder.tensors if name.endswith("k_norm.bias")]
    if not names:
        draft.refuse(found[0], "there is no k_norm.bias to describe")
    draft.describe(dict.fromkeys(names, FLOAT))
    draft.mend(found[0].rule, f"describe {len(names):,} biases of the indexer's key norm")


def _drop_quantization(draft: Draft, found: list[Condition]) -> None:
    draft.configure({"quantization_config": None})
    draft.mend(found[0].rule, f"remove quantization_config from {CONFIG}")


def _schedule(draft: Draft, found: list[Condition]) -> None:
    types = list(stored_schedule(draft.folder, draft.plan.config.num_hidden_layers))
    draft.configure(dict.fromkeys(SCHEDULE_KEYS))
    if set(types) != {FULL}:
        draft.configure(
            {
                "index_topk_freq": FREQUENCY,
                "index_skip_topk_offset": OFFSET,
                "indexer_types": types,
            }
        )
    draft.mend(found[0].rule, f"set the schedule of the {types.count(FULL)} stored indexers")


def _indexer_types(draft: Draft, found: list[Condition]) -> None:
    draft.configure({"indexer_types": list(draft.plan.config.indexer_types)})
    draft.mend(found[0].rule, f"write indexer_types into {CONFIG}")


def _no_head_dim(draft: Draft, found: list[Condition]) -> None:
    draft.configure({"head_dim": None})
    draft.mend(found[0].rule, f"remove head_dim from {CONFIG}")


def _unused_indexers(draft: Draft, found: list[Condition]) -> None:
    if set(stored_schedule(draft.folder, draft.plan.config.num_hidden_layers)) != {FULL}:
        draft.refuse(found[0], "the stored indexers follow no schedule of a release")
        return
    draft.configure(dict.fromkeys(SCHEDULE_KEYS))
    draft.mend(found[0].rule, f"remove the schedule from {CONFIG}: every layer has its indexer")


def _announce_mtp(draft: Draft, found: list[Condition]) -> None:
    draft.configure({"num_nextn_predict_layers": 1})
    draft.mend(found[0].rule, f"set num_nextn_predict_layers to 1 in {CONFIG}")


def _foreign_index(draft: Draft, found: list[Condition]) -> None:
    draft.plan.remove.add(INDEX)
    draft.plan.reindex = True
    draft.mend(found[0].rule, f"take {INDEX} away and index the files that are here")


def _stale_index(draft: Draft, found: list[Condition]) -> None:
    draft.plan.reindex = True
    draft.mend(found[0].rule, "index the files that are here")


def _scale_axis(draft: Draft, found: list[Condition]) -> None:
    for condition in found:
        name, spec = condition.subject, draft.folder.spec(condition.subject)
        draft.plan.replaced[name] = NewTensor(
            TensorSpec((*spec.shape, 1), spec.dtype), copied(draft.folder, name)
        )
    draft.mend(found[0].rule, f"give {len(found):,} scales their second axis")


def _bias_columns(draft: Draft, found: list[Condition]) -> None:
    for condition in found:
        name, spec = condition.subject, draft.folder.spec(condition.subject)
        if not bias_matches(draft.folder, name):
            draft.refuse(condition, "its one column is not the sum that codes and scales give")
            continue
        wide = TensorSpec((spec.shape[0], DOWN_COLUMNS), "F32")
        draft.plan.replaced[name] = NewTensor(wide, bias_of(draft.folder, name, wide))
    draft.mend(found[0].rule, f"give {len(found):,} scale_bias their {DOWN_COLUMNS} columns")


def _no_bias(draft: Draft, found: list[Condition]) -> None:
    done = 0
    for condition in found:
        name = condition.subject
        module = name.removesuffix("scale_bias")
        weight, scale = (f"{module}{part}" for part in ("weight", "weight_scale"))
        if not {weight, scale} <= set(draft.folder.tensors):
            draft.refuse(condition, "codes or scale are missing as well")
            continue
        columns = DOWN_COLUMNS if module.endswith(".down_proj.") else 1
        spec = TensorSpec((2 * draft.folder.spec(weight).shape[0], columns), "F32")
        draft.plan.added[name] = NewTensor(spec, bias_of(draft.folder, name, spec))
        draft.describe({name: W4A8_DYNAMIC})
        done += 1
    draft.mend(found[0].rule, f"compute {done:,} scale_bias from codes and scales")


def _static_parts(draft: Draft, found: list[Condition]) -> None:
    done = 0
    for condition in found:
        made = static_part(draft.folder, condition.subject)
        if made is None:
            draft.refuse(condition, "it does not follow from what is stored")
            continue
        draft.plan.added[condition.subject] = made
        draft.describe({condition.subject: "W8A8"})
        done += 1
    if done:
        draft.mend(found[0].rule, f"compute {done:,} parts of static linears from the others")


def _vocabulary(draft: Draft, found: list[Condition]) -> None:
    for condition in found:
        made = vocabulary_copy(draft, condition.subject)
        if isinstance(made, str):
            draft.refuse(condition, made)
            continue
        draft.plan.added[condition.subject] = made
        if draft.folder.description is not None:
            draft.describe({condition.subject: FLOAT})
        draft.mend(condition.rule, f"add {condition.subject}")


def _absent_mtp(draft: Draft, found: list[Condition]) -> None:
    made = mtp_layer(draft)
    if isinstance(made, str):
        draft.refuse(found[0], made)
        return
    draft.plan.added |= made
    if draft.folder.description is not None:
        draft.describe({name: FLOAT for name in made if name != ROTATION})
    if ROTATION in made:
        draft.describe({"is_rot_used": True})
    draft.mend(found[0].rule, f"add the MTP layer in float: {len(made):,} tensors of the source")


def _rotation(draft: Draft, found: list[Condition]) -> None:
    made = recycled(draft)
    if isinstance(made, str):
        draft.refuse(found[0], made)
        return
    draft.plan.added[ROTATION] = made
    draft.mend(found[0].rule, f"compute {ROTATION} from the source's model.norm")


MENDS: dict[str, Callable[[Draft, list[Condition]], None]] = {
    "index-foreign": _foreign_index,
    "index-stale": _stale_index,
    "config-quantization": _drop_quantization,
    "config-schedule": _schedule,
    "config-indexer-types": _indexer_types,
    "config-head-dim": _no_head_dim,
    "config-mtp": _announce_mtp,
    "indexer-unused": _unused_indexers,
    "scale-bias-missing": _no_bias,
    "static-missing": _static_parts,
    "scale-bias-columns": _bias_columns,
    "scale-axis": _scale_axis,
    "description-missing": _no_description,
    "undescribed-fused": _undescribed,
    "undescribed-int8": _undescribed,
    "undescribed-linear": _undescribed,
    "undescribed-other": _undescribed,
    "described-unknown": _forget,
    "description-part": _follow_weight,
    "version-key": _key("version", "1.0.0"),
    "group-size-missing": _key("group_size", 0),
    "group-size": _key("group_size", 0),
    "static-norm-bias": _norm_bias,
    "cache-mark": _forget,
    "mtp-absent": _absent_mtp,
    "mtp-undescribed": _undescribed_mtp,
    "mtp-vocabulary": _vocabulary,
    "rotation-missing": _rotation,
    "rotation-unannounced": _key("is_rot_used", True),
}

"""``quant_model_description.json``: scheme per tensor, and a few settings of the engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from glm5_ascend.errors import CheckpointError
from glm5_ascend.json_file import read_json_object

_AGAIN = "copy the file again, or quantise the checkpoint again"
# Per-layer switch of the int8 indexer cache: a setting under the name of a module.
_SETTING_SUFFIX = ".indexer.quant_type"


@dataclass(frozen=True, slots=True)
class DescriptionFile:
    """A parsed description; ``str()`` is its path.

    Attributes:
        path: the file.
        tensors: tensor name to scheme.
        settings: every other key.
    """

    path: Path
    tensors: dict[str, str]
    settings: dict[str, object]

    def __str__(self) -> str:
        return str(self.path)

    @classmethod
    def read(cls, path: Path) -> DescriptionFile:
        """Read the file; ``ConfigError`` for bad JSON, ``CheckpointError`` for bad values."""
        tensors: dict[str, str] = {}
        settings: dict[str, object] = {}
        for key, value in read_json_object(path).items():
            if "." not in key or key.endswith(_SETTING_SUFFIX):
                settings[key] = value
            elif isinstance(value, str):
                tensors[key] = value
            else:
                raise CheckpointError(f"{path} gives {key} no scheme but another value", _AGAIN)
        rotated = settings.get("is_rot_used", False)
        if not isinstance(rotated, bool):
            raise CheckpointError(f"{path}: is_rot_used must be true or false", _AGAIN)
        return cls(path, tensors, settings)

    @property
    def rotated(self) -> bool:
        """Whether the MTP layer's input state is multiplied with ``rot.weight``."""
        return self.settings.get("is_rot_used") is True

    def require(self, key: str, value: object, meaning: str) -> None:
        """Raise ``CheckpointError`` unless a setting has the only value that fits the tensors."""
        found = self.settings.get(key)
        if found != value or isinstance(found, bool):
            raise CheckpointError(
                f"{self.path}: {key} must be {value!r} ({meaning})",
                "engines up to 0.26 assume another layout otherwise; quantise again",
            )

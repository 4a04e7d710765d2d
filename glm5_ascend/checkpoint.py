"""Read a checkpoint directory of safetensors files, strictly and lazily. No torch, no pickle."""

from __future__ import annotations

import mmap
from collections.abc import Collection, Mapping
from pathlib import Path
from types import TracebackType

from glm5_ascend.checkpoint_files import AGAIN, list_files, read_index, refuse_missing_files
from glm5_ascend.checkpoint_header import (
    DTYPE_BYTES,
    StoredTensor,
    read_header,
    tensor_bytes,
)
from glm5_ascend.checkpoint_inventory import TensorSpec, expected_tensors, is_fp8
from glm5_ascend.checkpoint_values import first_not_finite
from glm5_ascend.checkpoint_writer import require_free_space, write_shard, write_text
from glm5_ascend.config import Glm5Config
from glm5_ascend.errors import CheckpointError
from glm5_ascend.files import open_regular

__all__ = [
    "DTYPE_BYTES",
    "CheckpointReader",
    "TensorSpec",
    "expected_tensors",
    "is_fp8",
    "require_free_space",
    "tensor_bytes",
    "write_shard",
    "write_text",
]

# A BF16 tensor may be stored as F32: every BF16 value is an F32 value.
_WIDER: Mapping[str, Collection[str]] = {"BF16": ("F32",)}


class CheckpointReader:
    """The tensors of all ``*.safetensors`` files in the root of a directory.

    Opening reads ``config.json`` and every header, with or without an index file, and refuses
    truncated files, duplicate tensors and an index that disagrees with the files. Data is mapped
    on first use. Use it as a context manager; the views of :meth:`raw` stay valid after it.

    Args:
        directory: the checkpoint.
        data_optional: also open files that end with their header, to plan without the data.

    Raises:
        ConfigError: from :class:`Glm5Config`.
        CheckpointError: anything wrong with the files; the message names file and tensor.
    """

    def __init__(self, directory: Path, *, data_optional: bool = False) -> None:
        self.directory = Path(directory)
        self._maps: dict[Path, mmap.mmap] = {}
        files = list_files(self.directory)
        self.config = Glm5Config.from_dir(self.directory)
        self.metadata: dict[Path, dict[str, str]] = {}
        self._tensors: dict[str, StoredTensor] = {}
        index = read_index(self.directory)
        refuse_missing_files(index, files)
        for file in files:
            tensors, self.metadata[file] = read_header(file, data_optional=data_optional)
            for name, tensor in tensors.items():
                if name in self._tensors:
                    raise CheckpointError(
                        f"tensor {name} is stored twice: in {self._tensors[name].file} and {file}",
                        "remove the shard that does not belong to this checkpoint",
                    )
                self._tensors[name] = tensor
        self._check_index(index)

    def __enter__(self) -> CheckpointReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the files; each mapping ends when the last view of it is gone."""
        self._maps.clear()

    def names(self) -> list[str]:
        """Every tensor, by file and position in the file."""
        return list(self._tensors)

    def files(self) -> list[Path]:
        """The safetensors files, sorted by name."""
        return list(self.metadata)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def spec(self, name: str) -> TensorSpec:
        """Shape and dtype of a tensor."""
        return self._find(name).spec

    def file_of(self, name: str) -> Path:
        """The file that holds a tensor."""
        return self._find(name).file

    def nbytes(self, name: str) -> int:
        """Stored size of a tensor in bytes."""
        return self._find(name).nbytes

    def raw(self, name: str) -> memoryview:
        """Little-endian bytes of a tensor, mapped copy-on-write: writing never reaches the file."""
        tensor = self._find(name)
        if tensor.nbytes == 0:
            return memoryview(bytearray())
        if tensor.file not in self._maps:
            try:
                with open_regular(tensor.file) as stream:
                    # Copy-on-write, because torch.frombuffer warns about read-only memory.
                    self._maps[tensor.file] = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
            except OSError as error:
                raise CheckpointError(
                    f"cannot map {tensor.file}: {error.strerror or error}", AGAIN
                ) from error
        view = memoryview(self._maps[tensor.file])
        end = tensor.offset + tensor.nbytes
        if len(view) < end:
            raise CheckpointError(f"{tensor.file} shrank: tensor {name} is cut off", AGAIN)
        return view[tensor.offset : end]

    def check_inventory(
        self,
        expected: Mapping[str, TensorSpec],
        also_allowed: Mapping[str, Collection[str]] = _WIDER,
    ) -> None:
        """Compare names, shapes and dtypes with what the configuration demands.

        Args:
            expected: every tensor that must be there, and nothing else may.
            also_allowed: dtypes accepted instead of an expected one.

        Raises:
            CheckpointError: the first difference, and how many more there are.
        """
        missing = [name for name in expected if name not in self._tensors]
        if missing:
            raise CheckpointError(
                f"{self.directory} lacks tensor {missing[0]}{_more(missing)}", AGAIN
            )
        extra = [name for name in self._tensors if name not in expected]
        if extra:
            raise CheckpointError(
                f"{self.file_of(extra[0])} holds tensor {extra[0]}, which the configuration does"
                f" not have{_more(extra)}",
                AGAIN,
            )
        for name, wanted in expected.items():
            stored = self.spec(name)
            where = f"{self.file_of(name)}: tensor {name}"
            if stored.shape != wanted.shape:
                raise CheckpointError(
                    f"{where} has shape {list(stored.shape)}, expected {list(wanted.shape)}", AGAIN
                )
            if stored.dtype not in (wanted.dtype, *also_allowed.get(wanted.dtype, ())):
                raise CheckpointError(
                    f"{where} has dtype {stored.dtype}, expected {wanted.dtype}", AGAIN
                )

    def check_finite(self, name: str) -> None:
        """Raise ``CheckpointError`` if a tensor holds NaN or infinity."""
        tensor = self._find(name)
        flat = first_not_finite(self.raw(name), tensor.spec.dtype)
        if flat is None:
            return
        position: list[int] = []
        for size in reversed(tensor.spec.shape):
            flat, index = divmod(flat, size)
            position.insert(0, index)
        raise CheckpointError(
            f"{tensor.file}: tensor {name} holds NaN or infinity, first at {position}",
            "the weights are damaged; download this file again or ask who made the checkpoint",
        )

    def _find(self, name: str) -> StoredTensor:
        if name not in self._tensors:
            raise CheckpointError(f"{self.directory} lacks tensor {name}", AGAIN)
        return self._tensors[name]

    def _check_index(self, index: Mapping[str, Path]) -> None:
        if not index:
            return
        for name, file in index.items():
            if name not in self._tensors or self._tensors[name].file != file:
                raise CheckpointError(
                    f"the index says that {file} holds tensor {name}, but it does not", AGAIN
                )
        for name, tensor in self._tensors.items():
            if name not in index:
                raise CheckpointError(
                    f"{tensor.file} holds tensor {name}, which the index does not list",
                    "remove files of another checkpoint, or the stale index file",
                )


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1:,} more)" if len(names) > 1 else ""

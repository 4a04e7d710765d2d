"""Where other projects' kernels come from: wheels in a folder, unpacked but not installed.

``tools/fetch_gpu_peers.sh`` fills the folder. Two wheels hold a package of the same name, so each
is unpacked into a folder of its own.
"""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from importlib import import_module
from pathlib import Path
from types import ModuleType

from tools.gpu_bench.entry import Absent

# Distributions that hold a module, best first, and what the module imports besides torch.
_SOURCES = {
    "flash_mla": ("sgl_flash_mla", "tokenspeed_flashmla"),
    "deep_gemm": ("tokenspeed_deepgemm",),
    "flashinfer": ("flashinfer_python",),
}
_NEEDS = {"flashinfer": ("apache_tvm_ffi",)}


class Peers:
    """Wheels of the folder ``where``; imports of each package are tried once."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self._found: dict[str, tuple[ModuleType, str] | str] = {}

    def load(self, name: str) -> tuple[ModuleType, str]:
        """(module, version of its distribution).

        Raises:
            Absent: there is no wheel of it, or it does not import; says why.
        """
        if name not in self._found:
            self._found[name] = self._search(name)
        found = self._found[name]
        if isinstance(found, str):
            raise Absent(found)
        return found

    def _search(self, name: str) -> tuple[ModuleType, str] | str:
        reasons = []
        for needed in _NEEDS.get(name, ()):
            if folder := self._unpacked(needed):
                sys.path.insert(0, str(folder))
        for source in _SOURCES[name]:
            folder = self._unpacked(source)
            if folder is None:
                reasons.append(f"no wheel {source} in {self.where.name}")
                continue
            if name == "flashinfer":
                self._prebuilt(folder)
            sys.path.insert(0, str(folder))
            try:
                return import_module(name), version(folder)
            except Exception as error:  # a foreign package may raise anything
                sys.path.remove(str(folder))
                for each in [m for m in sys.modules if m.split(".")[0] == name]:
                    del sys.modules[each]
                text = " ".join(str(error).split())[:200]
                reasons.append(f"{source}: {type(error).__name__}: {text}")
        return "; ".join(reasons)

    def _unpacked(self, source: str) -> Path | None:
        wheels = sorted(self.where.glob(f"{source}-*.whl"))
        if not wheels:
            return None
        folder = self.where / "site" / wheels[-1].name.removesuffix(".whl")
        if not folder.is_dir():
            partial = folder.with_name(folder.name + ".partial")
            shutil.rmtree(partial, ignore_errors=True)
            with zipfile.ZipFile(wheels[-1]) as archive:
                archive.extractall(partial)
            partial.rename(folder)
        return folder

    def _prebuilt(self, folder: Path) -> None:
        """Put a compiled top-k library where FlashInfer looks before it compiles its own."""
        library = self.where / "topk.so"
        place = folder / "flashinfer" / "data" / "aot" / "topk" / "topk.so"
        if library.is_file() and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(library, place)

    @property
    def has_top_k(self) -> bool:
        """Whether FlashInfer's top-k is compiled already."""
        return (self.where / "topk.so").is_file()


def version(folder: Path) -> str:
    """Name and version of the distribution unpacked in ``folder``."""
    found = sorted(folder.glob("*.dist-info"))
    return found[0].name.removesuffix(".dist-info").replace("-", " ") if found else "unknown"


def compiler_for_deep_gemm() -> None:
    """DeepGEMM compiles at the first call: with nvcc where there is one, else with NVRTC."""
    if shutil.which("nvcc") is None and not os.environ.get("CUDA_HOME"):
        os.environ.setdefault("DG_JIT_USE_NVRTC", "1")

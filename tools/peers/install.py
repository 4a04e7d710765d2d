"""Environments of the other quantisers, from PyPI: ``python -m tools.peers.install [NAME…]``."""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

from glm5_ascend.console import note
from glm5_ascend.errors import Glm5Error

CACHE = Path(__file__).resolve().parents[2] / ".peers"


@dataclass(frozen=True, slots=True)
class Peer:
    """A tool: ``packages`` beside the CPU build of ``torch``, and the script that runs it."""

    name: str
    version: str
    torch: str
    packages: tuple[str, ...]
    script: str

    def python(self, cache: Path = CACHE) -> Path:
        """Interpreter of the tool's environment."""
        return cache / self.name / "bin" / "python"

    def is_installed(self, cache: Path = CACHE) -> bool:
        """Whether an installation ran to its end."""
        return (cache / self.name / "installed.txt").is_file()


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "msmodelslim",
            "26.1.0",
            "torch==2.13.0",
            ("msmodelslim==26.1.0", "transformers==5.4.0"),
            "slim.py",
        ),
        Peer(
            "llm-compressor", "0.14.0.1", "torch==2.13.0", ("llmcompressor==0.14.0.1",), "llmc.py"
        ),
    )
}


def install(peer: Peer, cache: Path = CACHE) -> None:
    """Make the environment of ``peer``, about 1.7 GB, unless it is there.

    Torch comes first and alone, so that the tool's own demand does not fetch a CUDA build.

    Raises:
        Glm5Error: pip failed.
    """
    if peer.is_installed(cache):
        return
    folder = cache / peer.name
    note(f"installing {peer.name} {peer.version} into {folder}")
    venv.create(folder, with_pip=True, clear=True)
    for packages in ((peer.torch,), peer.packages):
        command = [str(peer.python(cache)), "-m", "pip", "install", "-q", *packages]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no message"]
            raise Glm5Error(
                f"pip could not install {' '.join(packages)}: {lines[-1]}",
                "check that PyPI and a CPU build of torch can be reached",
            )
    (folder / "installed.txt").write_text("\n".join((peer.torch, *peer.packages)) + "\n")


def main(argv: list[str]) -> int:
    """Command line entry."""
    parser = argparse.ArgumentParser(prog="tools.peers.install", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*PEERS, []], help="all without it")
    parser.add_argument("--venvs", type=Path, default=CACHE, help="folder of the environments")
    args = parser.parse_args(argv)
    for name in args.names or PEERS:
        install(PEERS[name], args.venvs)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A calibrated quantisation: each file of weights is written as soon as its layers are solved.

Solutions lie in the work directory only until every file that holds a part of the layer is
complete, so the run needs little more space than its output.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from glm5_ascend.checkpoint import CheckpointReader
from glm5_ascend.quant.backend import Backend
from glm5_ascend.quant.calibration import coverage
from glm5_ascend.quant.calibration.corpus import make_corpus
from glm5_ascend.quant.calibration.options import CalibrationOptions
from glm5_ascend.quant.calibration.session import Session
from glm5_ascend.quant.calibration.solution_store import SolutionStore
from glm5_ascend.quant.files import read_bytes, refusals
from glm5_ascend.quant.folding import layer_of
from glm5_ascend.quant.journal import Journal, manifest_entry
from glm5_ascend.quant.plan import Plan, Shard
from glm5_ascend.quant.refinement import REFINEMENTS, read_refinements
from glm5_ascend.quant.workers import Job, write_files

ENTRY = "calibration"


class CalibratedRun:
    """Calibrates and writes what the journal does not list yet.

    Args:
        source: the checkpoint.
        plan: what is made of it, by a recipe that needs a calibration.
        journal: of the destination.
        options: of the calibration.
        workers: threads of the calibration; files are written by one process, which has little to
            do but to copy solutions.
        backend: arithmetic of what is not solved.

    Raises:
        Glm5Error: from reading the text; nothing is written yet.
    """

    def __init__(
        self,
        source: Path,
        plan: Plan,
        journal: Journal,
        options: CalibrationOptions,
        workers: int,
        backend: Backend,
    ) -> None:
        self._source, self._plan, self._journal = source, plan, journal
        self._backend = backend
        with CheckpointReader(source) as reader:
            config = reader.config
        self._corpus = make_corpus(source, config, plan.recipe.calibration)
        self._setting = replace(options.setting, threads=workers)
        directory = options.directory(journal.directory)
        _require_usable(directory)
        self._session = Session(
            source, plan, self._corpus, self._setting, directory, journal.job, backend
        )
        self._layers = frozenset(self._session.layers())

    def write(self, *, resume: bool) -> dict[str, object]:
        """Write all files of weights; return the manifest's entry about the calibration."""
        left = self._left()
        before = {} if left else manifest_entry(self._journal.directory, ENTRY)
        if before:
            return before
        # Without a manifest the state still has what is said in it, even if all files are written.
        session = self._session
        session.begin(resume=resume, needed=_layers_of(left) & self._layers)
        session.refine()
        self._write_ready()
        for _ in session.run():
            self._write_ready()
        coverage.report(session.coverage, self._setting.min_tokens)
        return {
            "tokens": len(self._corpus.tokens),
            "sequences": len(self._corpus.starts),
            "tokens_sha256": self._corpus.digest(),
            "propagate": self._setting.propagate,
            "min_tokens": self._setting.min_tokens,
            "coverage": {str(n): c.as_dict() for n, c in sorted(session.coverage.items())},
        }

    def files(self) -> dict[str, bytes]:
        """What a calibration leaves beside the weights, by name.

        Raises:
            CheckpointError: the refinements that are in the weights are gone or damaged; a manifest
                of what is left would hide it.
        """
        if not self._plan.recipe.refines:
            return {}
        made, finished = (one.directory / REFINEMENTS for one in (self._session, self._journal))
        file = made if made.is_file() else finished
        read_refinements(file)
        return {REFINEMENTS: read_bytes(file, "start anew with --overwrite")}

    def finish(self) -> None:
        """Remove the work directory's files; the checkpoint is complete."""
        self._session.remove()

    def _left(self) -> list[Shard]:
        return [shard for shard in self._plan.shards if shard.file not in self._journal.done]

    def _write_ready(self) -> None:
        solutions = self._session.solutions()
        unsolved = self._layers - solutions.layers
        ready = [shard for shard in self._left() if not _layers_of([shard]) & unsolved]
        if ready:
            job = Job(
                self._source,
                self._journal.directory,
                self._plan.recipe.rotate,
                solutions,
                self._backend,
                refinements=self._session.refinements,
            )
            write_files(
                job,
                ready,
                1,
                lambda _: None,
                lambda shard, record: self._journal.record(shard.file, record),
            )
        self._release(solutions)

    def _release(self, solutions: SolutionStore) -> None:
        needed = _layers_of(self._left())
        for layer in solutions.layers - needed:
            solutions.release(layer)


def _layers_of(shards: Iterable[Shard]) -> frozenset[int]:
    found = (layer_of(step.name) for shard in shards for step in shard.steps)
    return frozenset(layer for layer in found if layer is not None)


def _require_usable(directory: Path) -> None:
    """Refuse a work directory that cannot be made, before anything is written elsewhere."""
    with refusals(f"write in {directory}", "choose another --work-dir"):
        missing = [path for path in (directory, *directory.parents) if not path.exists()]
        for path in reversed(missing):
            path.mkdir()
        for path in missing:
            path.rmdir()
        if not missing:
            tempfile.TemporaryFile(dir=directory).close()

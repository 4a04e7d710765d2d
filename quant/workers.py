"""Write the files of a plan, in this process or in several; which one does what changes no byte.

Worker processes are spawned, run torch with one thread, and end by themselves when the parent is
gone. The parent alone writes the journal.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NoReturn

import torch

from glm5_ascend.checkpoint import CheckpointReader
from glm5_ascend.errors import ChildFailed, Glm5Error
from glm5_ascend.quant.backend import CPU, Backend
from glm5_ascend.quant.journal import FileRecord
from glm5_ascend.quant.plan import Shard
from glm5_ascend.quant.refinement import refined_rotations
from glm5_ascend.quant.rotation import Orthogonal
from glm5_ascend.quant.solutions import NO_SOLUTIONS, Solutions
from glm5_ascend.quant.work import Advance, write_file

_PR_SET_PDEATHSIG = 1

Finished = Callable[[Shard, FileRecord], None]


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker needs to know: where to read, where to write, whether to rotate.

    ``solutions`` are pickled for worker processes, so they hold paths rather than tensors.
    ``is_cut`` says that source files lose their data while the job runs; ``refinements`` is the
    file of learned rotations.
    """

    source: Path
    destination: Path
    rotate: bool
    solutions: Solutions = NO_SOLUTIONS
    backend: Backend = CPU
    is_cut: bool = False
    refinements: Path | None = None

    def open_source(self) -> CheckpointReader:
        """A reader of the source, of which some files may have lost their data already."""
        return CheckpointReader(self.source, data_optional=self.is_cut)


@dataclass(frozen=True, slots=True)
class _Failure:
    """A user error on its way to the parent (exceptions with two arguments do not pickle)."""

    kind: type[Glm5Error]
    message: str
    hint: str


def write_files(
    job: Job,
    shards: Sequence[Shard],
    workers: int,
    advance: Advance,
    finished: Finished,
    cpus: Sequence[Collection[int]] = (),
) -> None:
    """Write ``shards``, calling ``finished`` after each file is complete on disk.

    Args:
        job: directories, rotation and solutions.
        shards: files still to write.
        workers: processes; 1 works in this one.
        advance: called with bytes done.
        finished: called in this process, in order of completion.
        cpus: of each worker process; they may use all without it.

    Raises:
        Glm5Error: the first failure; other workers are stopped.
    """
    if workers <= 1 or len(shards) <= 1:
        with job.open_source() as reader, one_thread():
            matrices = _matrices(reader, job)
            for shard in shards:
                record = write_file(
                    *(reader, shard, matrices, job.destination, advance),
                    *(job.solutions, job.backend),
                )
                finished(shard, record)
        return
    _Pool(job, shards, min(workers, len(shards)), advance, finished, cpus).run()


class _Pool:
    """Hands out one file at a time to each worker over a pipe."""

    def __init__(
        self,
        job: Job,
        shards: Sequence[Shard],
        count: int,
        advance: Advance,
        finished: Finished,
        cpus: Sequence[Collection[int]] = (),
    ) -> None:
        self._destination = job.destination
        self._pending = list(reversed(shards))
        self._advance, self._finished = advance, finished
        self._workers: dict[Connection, BaseProcess] = {}
        self._busy: dict[Connection, Shard] = {}
        context = get_context("spawn")
        for number in range(count):
            own = sorted(cpus[number]) if cpus else []
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, job, own), daemon=True)
            with _without_interrupts():
                process.start()
            theirs.close()
            self._workers[ours] = process

    def run(self) -> None:
        try:
            for connection in list(self._workers):
                self._hand_out(connection)
            while self._busy:
                for ready in wait(list(self._busy)):
                    if not isinstance(ready, Connection):
                        raise TypeError("not one of our pipes")
                    self._receive(ready)
        finally:
            self._stop()

    def _hand_out(self, connection: Connection) -> None:
        if self._pending:
            self._busy[connection] = self._pending.pop()
            try:
                connection.send(self._busy[connection])
            except ConnectionError:
                self._report_death(connection)

    def _receive(self, connection: Connection) -> None:
        try:
            message = connection.recv()
        except (EOFError, ConnectionError):
            self._report_death(connection)
        if isinstance(message, int):
            self._advance(message)
        elif isinstance(message, _Failure):
            raise message.kind(message.message, message.hint)
        else:
            self._finished(self._busy.pop(connection), message)
            self._hand_out(connection)

    def _report_death(self, connection: Connection) -> NoReturn:
        process = self._workers[connection]
        process.join()
        code = process.exitcode or 0
        what = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        raise ChildFailed(
            f"a worker {what} while writing {self._busy[connection].file}",
            "if memory ran out use fewer --workers; continue with --resume",
        )

    def _stop(self) -> None:
        for connection, process in self._workers.items():
            connection.close()
            if self._busy or self._pending:
                process.terminate()
        for process in self._workers.values():
            process.join()
        for shard in self._busy.values():
            # What a stopped worker was writing; the file itself appears by rename only.
            (self._destination / f".{shard.file}.part").unlink(missing_ok=True)


def _serve(connection: Connection, job: Job, cpus: Sequence[int]) -> None:
    """Main function of a worker: files in, progress and records out, until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_parent()
    if cpus:
        os.sched_setaffinity(0, cpus)
    torch.set_num_threads(1)

    try:
        with job.open_source() as reader:
            matrices = _matrices(reader, job)
            while True:
                shard = connection.recv()
                record = write_file(
                    *(reader, shard, matrices, job.destination, connection.send),
                    *(job.solutions, job.backend),
                )
                connection.send(record)
    except (EOFError, ConnectionError):
        return
    except Glm5Error as error:
        connection.send(_Failure(type(error), error.message, error.hint))


def _die_with_parent() -> None:
    """A killed parent takes its workers along, so that none writes beside a resumed run."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = parent_process()
    if parent is None or not parent.is_alive():
        raise SystemExit(1)


def _matrices(reader: CheckpointReader, job: Job) -> dict[str, Orthogonal]:
    return refined_rotations(reader.config, job.refinements) if job.rotate else {}


@contextmanager
def one_thread() -> Iterator[None]:
    """Products are summed in the same order whatever the machine's default is."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Spawned children start with SIGINT ignored: Ctrl-C is the parent's to handle."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

"""Accuracy of the demo's variants, computed beside the engine and paused while it is timed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from glm5_ascend.console import note

REPORT_S = 10.0


class Accuracy:
    """Evaluates checkpoints on held-out text in a thread; leave the context to stop it.

    Args:
        checkpoints: directories by variant name.
        reference: the variant that the others are compared with.
        min_bytes: held-out bytes to predict at least.
    """

    def __init__(self, checkpoints: Mapping[str, Path], reference: str, min_bytes: int) -> None:
        self._checkpoints, self._reference = checkpoints, reference
        self._min_bytes = min_bytes
        self._go, self._stop = threading.Event(), threading.Event()
        self._go.set()
        self._error: BaseException | None = None
        self._metrics: dict[str, dict[str, float]] = {}
        self._done = 0
        self._total = 0
        self.context: dict[str, object] = {}
        self._thread = threading.Thread(target=self._guarded, name="accuracy")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._stop.set()
        self._go.set()
        self._thread.join()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the processor to the engine; the forward under way is finished first.

        Raises what made the evaluation fail, so that no engine is timed in vain.
        """
        self._reraise()
        self._go.clear()
        try:
            yield
        finally:
            self._go.set()

    def result(self) -> dict[str, dict[str, float]]:
        """Wait for the end, with progress on stderr, and return metrics by variant.

        Raises:
            Glm5Error: whatever made the evaluation fail.
        """
        while self._thread.is_alive():
            if self._total:
                note(f"accuracy: {self._done} of {self._total} forward passes")
            self._thread.join(REPORT_S)
        self._reraise()
        return self._metrics

    def _reraise(self) -> None:
        if self._error is not None:
            raise self._error

    def _guarded(self) -> None:
        try:
            self._evaluate()
        except BaseException as error:
            self._error = error

    def _evaluate(self) -> None:
        import torch

        from glm5_ascend.heldout import HELDOUT_PACKAGES
        from glm5_ascend.simulator.evaluate import evaluate, summarise
        from glm5_ascend.simulator.model import OfflineModel
        from glm5_ascend.simulator.offline_metrics import WindowScore
        from glm5_ascend.simulator.offline_text import heldout_windows

        # One processor stays free for the engine that starts meanwhile.
        torch.set_num_threads(max(1, (os.cpu_count() or 1) - 1))
        models = {name: OfflineModel.load(path) for name, path in self._checkpoints.items()}
        config = models[self._reference].config
        windows = heldout_windows(self._checkpoints[self._reference], config, self._min_bytes)
        self._total = len(models) * len(windows)
        self.context = {
            "text": f"held-out packages {', '.join(HELDOUT_PACKAGES)} of the running Python",
            "text_bytes": sum(window.predicted_bytes for window in windows),
            "windows": len(windows),
            "window_tokens": len(windows[0].tokens),
            "index_topk": config.index_topk,
        }
        scores: dict[str, list[WindowScore]] = {name: [] for name in models}
        for name, score in evaluate(models, windows, reference=self._reference):
            scores[name].append(score)
            self._done += 1
            self._go.wait()
            if self._stop.is_set():
                return
        self._metrics = {name: summarise(part).as_dict() for name, part in scores.items()}

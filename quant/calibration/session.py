"""A calibration from the first layer to the last: activations, solutions, and the way back in.

State of the work directory: ``state.json`` names the job and the layers that are solved, and is
replaced after each of them; ``hidden-NNNN`` is the input of layer NNNN, ``choice-NNNN`` the
positions that the last layer with an indexer attended to. A run that was killed starts with the
layer after the last solved one, from files that are complete, and gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch

from glm5_ascend.checkpoint import (
    CheckpointReader,
    require_free_space,
    tensor_bytes,
    write_text,
)
from glm5_ascend.checkpoint_writer import write_bytes
from glm5_ascend.console import note
from glm5_ascend.errors import CheckpointError
from glm5_ascend.quant.backend import CPU, Backend
from glm5_ascend.quant.calibration import spill
from glm5_ascend.quant.calibration.corpus import Corpus
from glm5_ascend.quant.calibration.coverage import LayerCoverage, covered
from glm5_ascend.quant.calibration.folded_store import FoldedStore
from glm5_ascend.quant.calibration.layer_run import Files, LayerRun
from glm5_ascend.quant.calibration.options import Setting
from glm5_ascend.quant.calibration.progress import LayerProgress
from glm5_ascend.quant.calibration.rotation_run import RotationRun, say
from glm5_ascend.quant.calibration.solution_store import (
    SolutionStore,
    solution_file,
    write_scales,
    write_solution,
)
from glm5_ascend.quant.calibration.solver import Solver
from glm5_ascend.quant.files import names_in, read_bytes, refusals
from glm5_ascend.quant.folding import layer_of
from glm5_ascend.quant.plan import Plan
from glm5_ascend.quant.refinement import REFINEMENTS, as_bytes, refined_rotations
from glm5_ascend.quant.rotation import rotations
from glm5_ascend.quant.scheme import Scheme
from glm5_ascend.quant.workers import one_thread
from glm5_ascend.simulator.offline_load import load_norm

STATE = "state.json"
_OURS = re.compile(
    r"\.?(?:state\.json|quantize_rotations\.tensors|joined|mlp-input|(?:hidden|choice)-\d{4}"
    r"|(?:solution|scales)-\d{4}\.safetensors)(?:\.part)?"
)
_HINT = "repeat the command with the same options, or start anew with --overwrite"


class Session:
    """One calibration in ``directory``, which is made if it is absent.

    Args:
        source: the checkpoint, inventory checked.
        plan: what is made of it.
        corpus: text.
        setting: how.
        directory: for activations and solutions.
        job: what the run as a whole is; a work directory of another job is refused.
        backend: arithmetic of folding and of data-free rounding.
    """

    def __init__(
        self,
        source: Path,
        plan: Plan,
        corpus: Corpus,
        setting: Setting,
        directory: Path,
        job: dict[str, object],
        backend: Backend = CPU,
    ) -> None:
        self._source, self._plan, self._corpus = source, plan, corpus
        self._setting, self.directory = setting, directory
        self._backend = backend
        self._identity = _identity(job, corpus, setting)
        self.coverage: dict[int, LayerCoverage] = {}
        self.solved: list[int] = []

    def begin(self, *, resume: bool, needed: frozenset[int] = frozenset()) -> None:
        """Make the directory, or take up what is in it.

        Args:
            resume: continue from its state, if it has one.
            needed: layers whose solutions are still to be read; if one is gone, all begins anew.

        Raises:
            CheckpointError: it holds another job, or files that are no calibration's.
            DoesNotFit: the disk is too small for activations.
        """
        with refusals(f"create {self.directory}", "choose another --work-dir"):
            self.directory.mkdir(parents=True, exist_ok=True)
        present = names_in(self.directory, "choose another --work-dir")
        foreign = sorted(name for name in present if not _is_ours(name))
        if foreign:
            raise CheckpointError(
                f"{self.directory} is not empty: it holds {foreign[0]}",
                "choose an empty directory as --work-dir",
            )
        if STATE in present and resume:
            self._take_up()
            gone = needed & {
                n for n in self.solved if solution_file(self.directory, n).name not in present
            }
            if not gone:
                return
            note(f"the solution of layer {min(gone)} is gone; the calibration begins anew")
            self.solved, self.coverage = [], {}
        self.remove(keep_directory=True)
        self._require_space()
        self._save()

    def _require_space(self) -> None:
        """Three matrices of hidden states and two of choices exist at once, and a solution."""
        with CheckpointReader(self._source) as reader:
            config = reader.config
        per_token = 12 * config.hidden_size + 8 * config.index_topk
        layers: Counter[int | None] = Counter()
        for shard in self._plan.shards:
            for step in shard.steps:
                layers[layer_of(step.name)] += sum(map(tensor_bytes, step.stored.values()))
        largest = max(layers.values())
        require_free_space(self.directory, per_token * len(self._corpus.tokens) + largest)

    def remove(self, *, keep_directory: bool = False) -> None:
        """Remove everything that a calibration leaves, and nothing else; it may be gone already."""
        with refusals(f"empty {self.directory}", "remove it by hand"):
            for name in sorted(names_in(self.directory, "remove it by hand")):
                if _is_ours(name):
                    (self.directory / name).unlink()
            if keep_directory or not self.directory.is_dir():
                return
            if not any(self.directory.iterdir()):
                self.directory.rmdir()

    def solutions(self) -> SolutionStore:
        """What is solved so far."""
        return SolutionStore(self.directory, frozenset(self.solved))

    def layers(self) -> list[int]:
        """Layers that the calibration passes; an MTP layer only if it is quantised."""
        with CheckpointReader(self._source) as reader:
            config = reader.config
        steps = [step for shard in self._plan.shards for step in shard.steps]
        mtp = {
            layer
            for layer in range(config.num_hidden_layers, config.layer_count)
            for step in steps
            if step.scheme is not Scheme.FLOAT and step.name.startswith(f"model.layers.{layer}.")
        }
        return [*range(config.num_hidden_layers), *sorted(mtp)]

    def refine(self) -> None:
        """Learn the refinements of the rotations, if the recipe wants them and none are there.

        Raises:
            CheckpointError: they are gone although layers are solved.
        """
        if self.refinements is None or self.refinements.is_file():
            return
        if self.solved:
            raise CheckpointError(
                f"{self.refinements} is gone, and solved layers are in its basis",
                "start anew with --overwrite",
            )
        with CheckpointReader(self._source) as reader, one_thread():
            matrices = rotations(reader.config)
            steps = [step for shard in self._plan.shards for step in shard.steps]
            store = FoldedStore(reader, steps, matrices, self._backend)
            run = RotationRun(
                store,
                self._corpus,
                self._setting.threads,
                with_weights=self._plan.recipe.refine_rotation == "all",
            )
            layers = reader.config.num_hidden_layers
            progress = LayerProgress(layers, run.tokens(), 0, "refining rotations")
            with progress.shown():
                found = run.learn(progress)
        say(found)
        write_bytes(self.refinements, as_bytes({name: one.blocks for name, one in found.items()}))

    @property
    def refinements(self) -> Path | None:
        """The file of learned refinements, which :meth:`refine` writes; None without any."""
        return self.directory / REFINEMENTS if self._plan.recipe.refines else None

    def run(self) -> Iterator[int]:
        """Solve the layers that are left; yields each once its solution is on disk."""
        layers = self.layers()
        left = layers[len(self.solved) :]
        if not left:
            return
        progress = LayerProgress(len(layers), len(self._corpus.tokens), len(self.solved))
        with CheckpointReader(self._source) as reader, one_thread(), progress.shown():
            is_rotated = self._plan.recipe.rotate
            matrices = refined_rotations(reader.config, self.refinements) if is_rotated else {}
            steps = [step for shard in self._plan.shards for step in shard.steps]
            for layer in left:
                store = FoldedStore(reader, steps, matrices, self._backend)
                progress.layer(layers.index(layer))
                self._solve(store, layer, progress)
                yield layer

    def _solve(self, store: FoldedStore, layer: int, progress: LayerProgress) -> None:
        config = store.config
        if layer == 0:
            self._embed(store)
        spans, hidden = self._corpus.spans(), self._hidden(layer)
        if config.is_mtp(layer):
            spans, hidden = _shortened(spans), self._join(store, layer)
        is_shared = layer + 1 < config.num_hidden_layers and not config.has_indexer(layer + 1)
        files = Files(
            hidden,
            self._hidden(layer + 1),
            self._choice(layer) if is_shared else None,
            None if config.has_indexer(layer) else self._choice(layer - 1),
            self.directory / "mlp-input",
        )
        smoothing = self._plan.recipe.smoothing
        solver = Solver(self._setting)
        run = LayerRun(store, layer, spans, files, solver, smoothing, progress.advance)
        write_solution(self.directory, layer, run.steps(), run.solve())
        write_scales(self.directory, layer, store.scales)
        if run.routing is not None:
            self.coverage[layer] = covered(run.routing.counts, self._setting.min_tokens)
        self.solved.append(layer)
        self._save()
        spill.discard(hidden)
        spill.discard(self._choice(layer - 1))

    def _embed(self, store: FoldedStore) -> None:
        tokens = self._corpus.tokens
        path = self._hidden(0)
        hidden = spill.create(path, len(tokens), store.config.hidden_size)
        for rows in self._corpus.spans():
            hidden[rows] = store.embed("model.embed_tokens.weight", tokens[rows])
        spill.keep(path)

    def _join(self, store: FoldedStore, layer: int) -> Path:
        """The MTP layer's input: eh_proj of the next token's embedding and the final state.

        The state is the residual stream after the last decoder layer and the final norm.
        """
        config, tokens = store.config, self._corpus.tokens
        prefix = f"model.layers.{layer}"
        own = f"{prefix}.embed_tokens.weight"
        table = own if store.has(own) else "model.embed_tokens.weight"
        norm = load_norm(store, "model.norm")
        enorm, hnorm = (load_norm(store, f"{prefix}.{name}") for name in ("enorm", "hnorm"))
        rot = store.float("rot.weight") if store.uses_rot else None
        eh_proj = store.linear(f"{prefix}.eh_proj")
        last = self._hidden(config.num_hidden_layers)
        final = spill.open_rows(last, len(tokens), config.hidden_size)
        spans = self._corpus.spans()
        short = _shortened(spans)
        path = self.directory / "joined"
        joined = spill.create(path, short[-1].stop, config.hidden_size)
        for rows, to in zip(spans, short, strict=True):
            state = norm(final[rows][:-1])
            if rot is not None:
                state = torch.nn.functional.linear(state, rot)
            embedded = store.embed(table, tokens[rows][1:])
            # vLLM's MTP module blanks the embedding at position 0.
            embedded[:1] = 0
            joined[to] = eh_proj(torch.cat((enorm(embedded), hnorm(state)), -1))
        spill.keep(path)
        return path

    def _hidden(self, layer: int) -> Path:
        return self.directory / f"hidden-{layer:04d}"

    def _choice(self, layer: int) -> Path:
        return self.directory / f"choice-{layer:04d}"

    def _save(self) -> None:
        document = {
            "identity": self._identity,
            "solved": self.solved,
            "coverage": {str(n): list(c.counts) for n, c in sorted(self.coverage.items())},
        }
        write_text(self.directory / STATE, json.dumps(document) + "\n")

    def _take_up(self) -> None:
        path = self.directory / STATE
        try:
            document = json.loads(read_bytes(path, _HINT))
            solved = [int(layer) for layer in document["solved"]]
            counts = {int(n): tuple(map(int, row)) for n, row in document["coverage"].items()}
            identity = document["identity"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} is damaged", _HINT) from error
        if identity != self._identity:
            raise CheckpointError(
                f"{self.directory} holds a calibration with another source, text or options", _HINT
            )
        self.solved = solved
        self.coverage = {n: covered(row, self._setting.min_tokens) for n, row in counts.items()}


def _shortened(spans: list[slice]) -> list[slice]:
    """Rows of sequences that are one token shorter, without gaps."""
    return [slice(rows.start - i, rows.stop - i - 1) for i, rows in enumerate(spans)]


def _identity(job: dict[str, object], corpus: Corpus, setting: Setting) -> str:
    values = asdict(setting)
    del values["threads"]
    text = json.dumps([job, corpus.digest(), values], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _is_ours(name: str) -> bool:
    return _OURS.fullmatch(name) is not None

"""Twenty prompts and what the small BF16 model says to them, recorded.

``python -m tests.support.golden`` writes ``tests/data/golden.json`` again, for another model.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer

from glm5_ascend.demo import SMALL_MODEL
from glm5_ascend.simulator.model import OfflineModel

FILE = Path(__file__).parents[1] / "data" / "golden.json"
LENGTH = 8
PROMPTS = (
    "import os\nimport ",
    "def __init__(self, ",
    "for i in range(",
    "    return self.",
    "if __name__ == ",
    "class Queue:\n    def put(self, item):\n        ",
    "    raise ValueError(",
    "try:\n    import ",
    "with open(filename, ",
    "def test_empty(self):\n        self.assert",
    "    def __repr__(self):\n        return ",
    "while True:\n    line = ",
    "    if not isinstance(",
    "from collections import ",
    "@property\n    def name(self):\n        ",
    "except KeyError",
    "def main():\n    parser = ",
    "    for key, value in ",
    'msg = "%s: %d" % (',
    "lock.acquire()\ntry:\n    ",
)


def answers() -> dict[str, list[int]]:
    """The recorded tokens by prompt."""
    found: dict[str, list[int]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def agreement(model: OfflineModel, tokenizer: Tokenizer) -> tuple[int, int]:
    """Prompts answered exactly as recorded, and single tokens, given those before, that agree."""
    exact = single = 0
    for prompt, answer in answers().items():
        tokens = tokenizer.encode(prompt, add_special_tokens=False).ids
        logits = model.forward(torch.tensor(tokens + answer[:-1])).logits
        same = logits[len(tokens) - 1 :].argmax(-1) == torch.tensor(answer)
        exact += bool(same.all())
        single += int(same.sum())
    return exact, single


def main() -> None:
    """Record the greedy answers."""
    model = OfflineModel.load(SMALL_MODEL)
    tokenizer = Tokenizer.from_file(str(SMALL_MODEL / "tokenizer.json"))
    found = {}
    for prompt in PROMPTS:
        tokens = tokenizer.encode(prompt, add_special_tokens=False).ids
        answer: list[int] = []
        for _ in range(LENGTH):
            logits = model.forward(torch.tensor(tokens + answer)).logits
            answer.append(int(logits[-1].argmax()))
        found[prompt] = answer
        print(repr(prompt), "->", repr(tokenizer.decode(answer)))
    FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""The built-in calibration text: prose in 16 languages, chats about it, code in many, arithmetic.

A third is prose and chats put together at random from ``default_text.json``, a third English
documentation and a third Python source, both read from the running Python's library, whose text
makes the result depend on its version: the manifest holds a digest of the tokens. Nothing comes
from the packages that evaluation holds out (:mod:`glm5_ascend.heldout`), nor from their tests.
"""

from __future__ import annotations

import importlib.util
import json
import random
import sysconfig
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from glm5_ascend.heldout import HELDOUT_PACKAGES
from glm5_ascend.quant.calibration.documents import Document

# Packages that are no source text, or are not part of every installation.
_NOT_SOURCE = ("site-packages", "__pycache__", "encodings", "pydoc_data", "lib2to3", "idlelib")
_LARGEST_FILE = 100_000
# Characters that a token stands for at least, on average: how much text is made for a budget.
_CHARACTERS_PER_TOKEN = 4
_SENTENCES = (3, 7)


def default_documents(seed: int, tokens: int) -> Iterator[Document]:
    """Documents without end to speak of: three kinds in turn until each has its share.

    Args:
        seed: of every choice.
        tokens: the budget, of which each kind gets a third.
    """
    generator = random.Random(seed)
    share = tokens * _CHARACTERS_PER_TOKEN // 3
    kinds = [_chats(generator), _topics(generator), _sources(generator)]
    written = [0] * len(kinds)
    while kinds:
        kind = written.index(min(written))
        document = next(kinds[kind], None)
        if document is None or written[kind] > 2 * share:
            del kinds[kind], written[kind]
            continue
        written[kind] += _size(document)
        yield document


def _size(document: Document) -> int:
    return len(document.text) + sum(len(str(m["content"])) for m in document.messages)


def _chats(generator: random.Random) -> Iterator[Document]:
    """Plain paragraphs, questions about one, snippets of code and sums, endlessly."""
    text = json.loads(files(__package__).joinpath("default_text.json").read_text("utf-8"))
    prose, questions, snippets = text["prose"], text["questions"], text["snippets"]
    while True:
        language = generator.choice(sorted(prose))
        count = generator.randint(*_SENTENCES)
        paragraph = " ".join(generator.sample(prose[language], count))
        match generator.randrange(4):
            case 0:
                yield Document(paragraph + "\n")
            case 1:
                question = generator.choice(questions[language])
                answer = "\n".join(f"- {s}" for s in generator.sample(prose[language], 3))
                yield _chat(f"{question}\n\n{paragraph}", answer)
            case 2:
                name = generator.choice(sorted(snippets))
                yield _chat(f"Show me an example in {name}.", f"```{name}\n{snippets[name]}```")
            case _:
                yield _sum(generator)


def _sum(generator: random.Random) -> Document:
    boxes, each, sold = (generator.randint(3, 97) for _ in range(3))
    total = boxes * each
    sold = min(sold, total)
    return _chat(
        f"A shop buys {boxes} boxes of {each} lamps and sells {sold} lamps. How many are left?",
        f"{boxes} × {each} = {total} lamps were bought; {total} − {sold} = {total - sold} remain.",
    )


def _chat(question: str, answer: str) -> Document:
    return Document(
        messages=(
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        )
    )


def _topics(generator: random.Random) -> Iterator[Document]:
    """The language reference that ``pydoc`` ships, topic by topic."""
    if importlib.util.find_spec("pydoc_data.topics") is None:
        return
    from pydoc_data.topics import topics

    for name in _shuffled(generator, sorted(topics)):
        if not any(package in topics[name] for package in HELDOUT_PACKAGES):
            yield Document(topics[name])


def _sources(generator: random.Random) -> Iterator[Document]:
    root = Path(sysconfig.get_paths()["stdlib"])
    names = [path.relative_to(root).as_posix() for path in root.rglob("*.py")]
    for name in _shuffled(generator, sorted(filter(_is_usable, names))):
        content = (root / name).read_bytes()
        try:
            text = content.decode("utf-8").replace("\r\n", "\n")
        except UnicodeDecodeError:
            continue
        if text.strip() and len(text) <= _LARGEST_FILE:
            yield Document(text)


def _is_usable(name: str) -> bool:
    """Whether a source file may be read: no held-out package, and no test of one."""
    parts = name.split("/")
    if any(part in _NOT_SOURCE for part in parts) or parts[0] in HELDOUT_PACKAGES:
        return False
    is_test = "test" in parts or "tests" in parts
    return not (is_test and any(package in name for package in HELDOUT_PACKAGES))


def _shuffled(generator: random.Random, names: list[str]) -> list[str]:
    generator.shuffle(names)
    return names

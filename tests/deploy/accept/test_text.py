"""Broken and repeating texts, and texts that only look so."""

from __future__ import annotations

import random

import pytest

from glm5_ascend.deploy.accept.text import fault, garbled, repeating
from tests.deploy.accept.fake import PROSE

CHINESE = "自行车在行驶时能够保持直立，是因为前轮会自动转向倾倒的一侧，使接触点回到重心的下方。"
CODE = (
    "def f(x):\n    if x:\n        return [1, 2]\n    return {'a': (x, -x)}\n# ----------------\n"
)
TABLE = "| a | b |\n| --- | --- |\n| 1 | 2 |\n\nTotal ................................ 12\n"
LIST = "\n".join(f"{n}. The {n}th item of the list costs {n * 3} francs." for n in range(1, 15))


@pytest.mark.parametrize("text", [PROSE, CHINESE, CODE, TABLE, LIST, "391", "Hahahaha!!!", "北京"])
def test_sound_texts(text: str) -> None:
    assert fault(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "!" * 8,
        f"{PROSE} !!!!!!!!!!!!",
        "！" * 12,
        "a" * 60,
        "the \ufffd\ufffd end",
        "abc\x00def",
        "#$%&)(*/ +?=}{[]" * 8,
    ],
)
def test_garbled(text: str) -> None:
    assert garbled(text)
    assert fault(text)


@pytest.mark.parametrize("unit", [" the", " and so on", "\nYes, of course.", "我们", " 1"])
@pytest.mark.parametrize("cut", [0, 1, 2])
def test_repetition_is_seen_wherever_it_is_cut(unit: str, cut: int) -> None:
    text = PROSE + unit * 60
    assert repeating(text[: len(text) - cut])


def test_repetition_with_small_changes() -> None:
    random.seed(5)
    sentence = "the wheel turns to the left and the frame comes back up again"
    text = " ".join(f"{sentence} {random.randint(0, 99)}" for _ in range(12))
    assert repeating(text) is not None


def test_nothing() -> None:
    assert fault(" \n") == "nothing"

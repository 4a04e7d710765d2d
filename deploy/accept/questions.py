"""What is asked of GLM-5, and what of the small model that stands in for it on a CPU."""

from __future__ import annotations

from dataclasses import dataclass

_SPEED = "Write a detailed history of the printing press, in several paragraphs."
_STREAMS = 4


@dataclass(frozen=True, slots=True)
class Questions:
    """One set.

    Attributes:
        golden: question, and a word of the right answer.
        continued: text to go on with, and what must come soon.
        prose: a question whose answer is at least 200 characters of prose, or nothing.
        searches: a prompt of some thousand tokens is within the model's reach.
        weather: asks for the weather of a city with a tool.
        city: the city in English and Chinese, small letters.
        streamed: one to warm up, then what is streamed at once, different so that none finds
            another in the cache.
        chat: these are questions, else texts to go on with.
        tokens: of each of these answers.
        accepted: share of drafts below which the draft layer is broken.
        known: what is known of that share.
    """

    golden: tuple[tuple[str, str], ...]
    continued: tuple[tuple[str, str], ...]
    prose: str
    searches: bool
    weather: str
    city: tuple[str, str]
    streamed: tuple[str, ...]
    chat: bool
    tokens: int
    accepted: float
    known: str


GLM5 = Questions(
    golden=(
        ("What is the capital of France? Answer with one word.", "paris"),
        ("What is 17 times 23? Answer with the number only.", "391"),
        ("中国的首都是哪个城市？只回答城市名。", "北京"),
    ),
    continued=(),
    prose="Explain in about 150 words how a bicycle stays upright while it rolls.",
    searches=True,
    weather="What is the weather in Hangzhou right now? Use the tool.",
    city=("hangzhou", "杭州"),
    streamed=(_SPEED, *(f"{n}. {_SPEED}" for n in range(_STREAMS))),
    chat=True,
    tokens=128,
    # Published for three drafts: .90, .77, .63 (GLM-5.2 W4A8); a broken layer has next to none.
    accepted=0.3,
    known="0.77 published for three",
)
_QUEUE = '''import collections


class Queue:
    """A first-in, first-out container."""

    def __init__(self):
        self.items = collections.deque()

    def put(self, item):
        """Add an item."""
        self.items.append(item)

    def get(self):
        """Remove and return the oldest item."""
        return'''
_POINT = '''class Point:
    """A point in the plane."""

    def __init__(self, x, y):
        self.x = x
        self.y = y

    def __eq__(self, other):
        if not isinstance(other, Point):
            return NotImplemented
        return'''
_LINES = '''def read_lines(path):
    """Return the lines of a text file."""
    with open(path, encoding="utf-8") as file:
        return'''
_TESTS = '''import unittest


class TestStack(unittest.TestCase):
    """Tests of the stack."""

    def setUp(self):
        self.stack = Stack()

    def test_push(self):
        self.stack.push(1)
        self.assertEqual(self.stack.pop(), 1)

    def test_empty(self):
        with self.assertRaises(IndexError):
            self.'''
_MAIN = """import argparse


def main():
    parser = argparse.ArgumentParser()
"""
# The model was trained on questions of this form and on Python sources. `_QUEUE` and `_POINT` are
# longer than the 64 keys that its sparse attention reads. It repeats itself in the end, so answers
# are short.
SMALL = Questions(
    golden=(
        ("What does len() do in Python?", "the number of items"),
        ("What does open() do in Python?", "a file object"),
        ("What does sorted() do in Python?", "a new sorted list"),
        ("Hello!", "how can i help you"),
    ),
    continued=((_QUEUE, "self.items"), (_POINT, "other.")),
    prose="",
    searches=False,
    weather="What is the weather in Hangzhou?",
    city=("hangzhou", "杭州"),
    streamed=(_MAIN, _QUEUE, _POINT, _LINES, _TESTS),
    chat=False,
    tokens=48,
    accepted=0.3,
    known="0.69 measured for three",
)

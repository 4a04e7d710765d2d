"""Calibration text: forms, errors with line numbers, packing, the built-in default."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from glm5_ascend.config import Glm5Config
from glm5_ascend.errors import CheckpointError, ConfigError, Glm5Error
from glm5_ascend.heldout import heldout_text
from glm5_ascend.quant.calibration.corpus import make_corpus, sequence_length
from glm5_ascend.quant.calibration.default_documents import default_documents
from glm5_ascend.quant.calibration.documents import read_documents
from glm5_ascend.quant.calibration.options import CalibrationOptions, Setting
from glm5_ascend.quant.recipe_file import preset
from glm5_ascend.quant.recipe_rules import Calibration

SMALL = Path(__file__).parents[3] / "glm5_ascend" / "assets" / "small-glm5"
CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


def lines(directory: Path, *entries: object) -> Path:
    file = directory / "text.jsonl"
    file.write_text("".join(json.dumps(e, ensure_ascii=False) + "\n" for e in entries))
    return file


def test_the_three_forms(tmp_path: Path) -> None:
    file = lines(tmp_path, {"text": "a\u2028b", "id": 1}, {"messages": CHAT}, {"prompt": "Why?"})
    text, chat, prompt = read_documents(file)
    assert text.text == "a\u2028b"
    assert list(chat.messages) == CHAT
    assert not chat.is_prompt
    assert prompt.messages == ({"role": "user", "content": "Why?"},)
    assert prompt.is_prompt
    plain = tmp_path / "plain.txt"
    plain.write_text('{"text": "not parsed"}')
    assert read_documents(plain)[0].text == '{"text": "not parsed"}'


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "line 2: not valid JSON"),
        ("[1]", r"line 2: \[1\] is not an object"),
        ('{"content": "x"}', "line 2: one of text, messages, prompt is needed, it has only"),
        ('{"text": "x", "prompt": "y"}', "line 2: .* it has text and prompt"),
        ('{"text": 3}', "line 2: text must be text, got 3"),
        ('{"text": "a \\ud800 b"}', "line 2: half of a surrogate pair is no text"),
        (
            '{"messages": [{"role": "user", "content": "\\udc00"}]}',
            "line 2: half of a surrogate pair is no text",
        ),
        ('{"prompt": " "}', "line 2: prompt must be text"),
        ('{"messages": []}', "line 2: messages must be a list of messages"),
        ('{"messages": [{"content": "x"}]}', "line 2: message 1 has no role"),
        ('{"messages": [{"role": "user", "content": 5}]}', "line 2: content of message 1 is 5"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, problem: str) -> None:
    file = tmp_path / "text.jsonl"
    file.write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(Glm5Error, match=problem):
        read_documents(file)


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(Glm5Error, match="No such file"):
        read_documents(tmp_path / "none")
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(Glm5Error, match="holds no text"):
        read_documents(tmp_path / "empty.jsonl")
    (tmp_path / "latin.txt").write_bytes(b"one\ntwo \xe9\n")
    with pytest.raises(Glm5Error, match="line 2: not UTF-8"):
        read_documents(tmp_path / "latin.txt")


def test_documents_pass_through_template_and_tokenizer(tmp_path: Path) -> None:
    config = Glm5Config.from_dir(SMALL)
    file = lines(tmp_path, {"messages": CHAT}, {"prompt": "Say why it rains so often here."})
    corpus = make_corpus(SMALL, config, Calibration(str(file), 1000, None, 1))
    make = AutoTokenizer.from_pretrained(SMALL)
    parts = [
        make.apply_chat_template(CHAT, tokenize=False),
        make.apply_chat_template(
            [{"role": "user", "content": "Say why it rains so often here."}],
            tokenize=False,
            add_generation_prompt=True,
        ),
    ]
    wanted = {
        tuple(make(a + b, add_special_tokens=False).input_ids) for a, b in (parts, parts[::-1])
    }
    assert tuple(corpus.tokens.tolist()) in wanted


def test_budget_sequences_and_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = Glm5Config.from_dir(SMALL)
    file = lines(
        tmp_path, *({"text": f"line {i} of many, said once more\n" * 9} for i in range(30))
    )
    first = make_corpus(SMALL, config, Calibration(str(file), 700, None, 1))
    assert len(first.tokens) == 700
    lengths = [rows.stop - rows.start for rows in first.spans()]
    assert lengths[:-1] == [2 * config.index_topk] * (len(lengths) - 1)
    assert sum(lengths) == 700
    assert min(lengths) >= 2
    assert capsys.readouterr().err == ""
    again = make_corpus(SMALL, config, Calibration(str(file), 700, None, 1))
    other = make_corpus(SMALL, config, Calibration(str(file), 700, None, 2))
    assert first.digest() == again.digest() != other.digest()
    short = make_corpus(SMALL, config, Calibration(str(file), 10**6, 32, 1))
    error = capsys.readouterr().err
    assert f"has {len(short.tokens):,} of the 1,000,000 tokens asked for" in error
    assert "not more than index_topk 64" in error


@pytest.mark.parametrize(
    ("tokens", "wanted", "length"),
    [
        (10_000, None, 128),
        (400, None, 100),
        (10_000, 300, 300),
        (10**6, 9999, 4096),
        (20, None, 16),
    ],
)
def test_length_of_sequences(tokens: int, wanted: int | None, length: int) -> None:
    assert sequence_length(Glm5Config.from_dir(SMALL), tokens, wanted) == length


def test_too_little_text_and_no_tokenizer(tmp_path: Path) -> None:
    config = Glm5Config.from_dir(SMALL)
    with pytest.raises(Glm5Error, match="too few to say anything"):
        make_corpus(SMALL, config, Calibration(str(lines(tmp_path, {"text": "a"})), 100))
    with pytest.raises(CheckpointError, match=r"tokenizer.json is missing"):
        make_corpus(tmp_path, config, Calibration(str(lines(tmp_path, {"text": "a"})), 100))


def test_the_default_text_is_mixed_and_not_held_out() -> None:
    documents = list(islice(default_documents(1, 100_000), 900))
    texts = [d.text or "".join(str(m["content"]) for m in d.messages) for d in documents]
    whole = "\n".join(texts)
    assert any(d.messages for d in documents)
    assert any(not d.messages for d in documents)
    for sample in ("import ", "的", "の", "이", "ы", "ال", "है", "ß", "água", "ą", "#include"):
        assert sample in whole
    held = heldout_text(0).decode()
    # Whole lines of some length; shorter ones are idioms of the language.
    lines_held = {line.strip() for line in held.splitlines() if len(line.strip()) >= 60}
    ours = {line.strip() for line in whole.splitlines() if len(line.strip()) >= 60}
    assert len(ours) > 200
    assert len(ours & lines_held) <= 2
    assert list(islice(default_documents(1, 100_000), 50)) == documents[:50]


def test_options_turn_rules_to_gptq() -> None:
    asked = CalibrationOptions(text="default", tokens=99)
    four = asked.applied(preset("w4a8"))
    assert [rule.rounding for rule in four.rules] == ["gptq", "search"]
    assert four.calibration.tokens == 99
    assert four.smoothing == ("fit",)
    assert asked.applied(preset("w4a8-thorough")).smoothing == ("fit", "fit-experts")
    assert [rule.rounding for rule in asked.applied(preset("w8a8")).rules] == ["gptq"]
    assert CalibrationOptions().applied(preset("w4a8")) == preset("w4a8")
    for wrong in (
        asked,
        CalibrationOptions(tokens=5),
        CalibrationOptions(work_dir=Path("x")),
        CalibrationOptions(setting=Setting(propagate="float")),
        CalibrationOptions(setting=Setting(min_tokens=1)),
    ):
        with pytest.raises(ConfigError, match="needs no calibration"):
            wrong.applied(preset("none"))

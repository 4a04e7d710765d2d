"""Windows of held-out text: lengths, exact byte counts, even spread, and refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from glm5_ascend.config import Glm5Config
from glm5_ascend.errors import CheckpointError, ConfigError, Glm5Error
from glm5_ascend.simulator.offline_text import (
    Window,
    heldout_windows,
    spread,
    token_windows,
    window_length,
)
from tests.support.tiny_model import write_tiny

TEXT = "def naïve(x):\n    return x  # größer als zwei – 漢字\n".encode() * 40


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("text") / "tiny", tokenizer=True)


def test_window_length_is_eight_times_topk(model: Path) -> None:
    config = Glm5Config.from_dir(model)
    assert window_length(config) == 8 * config.index_topk
    with pytest.raises(ConfigError, match="max_position_embeddings"):
        window_length(replace(config, max_position_embeddings=8 * config.index_topk - 1))


def test_bytes_are_those_of_the_predicted_tokens(model: Path) -> None:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    windows = token_windows(TEXT, model / "tokenizer.json", 64)
    ids = tokenizer.encode(TEXT.decode(), add_special_tokens=False).ids
    assert len(windows) == len(ids) // 64
    assert torch.cat([w.tokens for w in windows]).tolist() == ids[: 64 * len(windows)]
    # Independently: the text before each boundary, cut where the tokens end.
    alphabet = {
        token: len(text)
        for token, text in ((i, tokenizer.id_to_token(i)) for i in set(ids))
        if text is not None
    }
    for window in windows:
        assert window.predicted_bytes == sum(alphabet[i] for i in window.tokens.tolist()[1:])
    assert sum(alphabet[i] for i in ids) == len(TEXT)  # multi-byte characters included


def test_spread_takes_the_fewest_windows_evenly() -> None:
    windows = [Window(torch.tensor([number]), 10) for number in range(100)]
    assert [int(w.tokens) for w in spread(windows, 35)] == [0, 25, 50, 75]
    assert len(spread(windows, 1000)) == 100
    with pytest.raises(Glm5Error, match="1000 predicted bytes"):
        spread(windows, 1001)


def test_heldout_windows_reach_the_bytes_asked_for(model: Path) -> None:
    config = Glm5Config.from_dir(model)
    windows = heldout_windows(model, config, 4096)
    assert 4096 <= sum(w.predicted_bytes for w in windows) < 4096 + 8 * config.index_topk * 4
    assert {len(w.tokens) for w in windows} == {8 * config.index_topk}


def test_missing_and_foreign_tokenizers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is missing"):
        token_windows(TEXT, tmp_path / "tokenizer.json", 64)
    from tokenizers.models import WordLevel

    words = Tokenizer(WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    words.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(CheckpointError, match="not byte-level"):
        token_windows(TEXT, tmp_path / "tokenizer.json", 64)

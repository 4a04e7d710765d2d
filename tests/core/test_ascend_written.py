"""What the project's own quantiser and the tests' independent writer make is accepted."""

from __future__ import annotations

from pathlib import Path

import pytest

from glm5_ascend.inspection import inspect_checkpoint

pytestmark = pytest.mark.torch

OWN = {
    "int4": {"scheme": "w4a8", "rotate": True},
    "int4, float MTP": {"scheme": "w4a8", "rotate": False, "mtp": "float", "dtype": "float32"},
    "int8": {"scheme": "w8a8", "rotate": True, "dtype": "float32"},
    "rotated float": {"scheme": "none", "rotate": True},
    "plain float": {"scheme": "none", "rotate": False},
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.support.tiny_model import write_tiny

    directory = tmp_path_factory.mktemp("tiny")
    write_tiny(directory)
    return directory


@pytest.mark.parametrize("case", OWN)
def test_own_output(case: str, source: Path, tmp_path: Path) -> None:
    from glm5_ascend.quant.command import QuantizeOptions, run

    options = OWN[case]
    run(QuantizeOptions(source, tmp_path / "out", **options))  # type: ignore[arg-type]
    found = inspect_checkpoint(tmp_path / "out")
    assert found.rotated is options["rotate"]
    expected = {"w4a8": "W4A8_DYNAMIC", "w8a8": "W8A8_DYNAMIC", "none": "FLOAT"}
    if case != "plain float":
        assert list(found.schemes["routed_experts"]) == [expected[str(options["scheme"])]]


@pytest.mark.parametrize("static", [False, True])
def test_output_of_the_independent_writer(static: bool, source: Path, tmp_path: Path) -> None:
    from tests.support.tiny_ascend import write_tiny_ascend

    write_tiny_ascend(source, tmp_path, scheme="w8a8", static=static)
    found = inspect_checkpoint(tmp_path)
    assert ("W8A8" in found.schemes["attention"]) is static

"""Every value that PyYAML cannot build is an error of YAML, with its line."""

from __future__ import annotations

import pytest
import yaml

from glm5_ascend.yaml_file import PlainLoader

BAD = {
    "a date": "2020-99-99",
    "an hour": "2020-01-01 99:00:00",
    "a zone": "2020-01-01 00:00:00 +99:00",
    "binary digits": "0b_",
    "too many digits": "9" * 5000,
    "an empty whole number": "!!int ''",
    "an empty float": "!!float ''",
    "a flag": "!!bool 3",
    "a tagged date": "!!timestamp no",
}


@pytest.mark.parametrize("place", ["a: 1\nb: {}", "a: 1\n? {}\n: 2", "a: 1\nb: [[{}]]"])
@pytest.mark.parametrize("case", BAD)
def test_values_that_are_none(case: str, place: str) -> None:
    text = place.replace("{}", BAD[case])
    with pytest.raises((ValueError, LookupError, AttributeError)):
        yaml.safe_load(text)
    with pytest.raises(yaml.MarkedYAMLError, match="cannot be read as") as caught:
        yaml.load(text, PlainLoader)
    assert caught.value.problem_mark is not None
    assert caught.value.problem_mark.line == 1


def test_the_rest_is_the_safe_loader() -> None:
    text = "a: [1, 0x2, 1e3, 2020-01-01, ~]\nb: &x {c: yes}\nd: {<<: *x, e: text}"
    assert yaml.load(text, PlainLoader) == yaml.safe_load(text)

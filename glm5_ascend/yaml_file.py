"""YAML of a user: plain data, and every value that cannot be read an error of YAML."""

from __future__ import annotations

from typing import Any

import yaml

from glm5_ascend.errors import brief


class PlainLoader(yaml.SafeLoader):
    """PyYAML's safe loader, which lets Python's own errors through: for dates such as 2020-99-99,
    numbers such as ``0b_`` or of more than 4300 digits, and tags such as ``!!bool 3``.

    Here they are a ``ConstructorError`` with its line.
    """

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError) as error:
            kind = node.tag.rpartition(":")[2]
            problem = f"{brief(node.value)} cannot be read as {kind}"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error


class UniqueLoader(PlainLoader):
    """The same, and a key that is there twice is an error; YAML keeps the last without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen and key.value != "<<":
                problem = f"the key {brief(key.value)} is there twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep=deep)


class BlockDumper(yaml.SafeDumper):
    """PyYAML's safe dumper, with texts of several lines as literal blocks, which can be read."""


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


BlockDumper.add_representer(str, _block)

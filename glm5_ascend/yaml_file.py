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

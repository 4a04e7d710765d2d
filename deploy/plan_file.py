"""The plan file: what ``plan`` writes and ``serve --plan`` and ``render`` read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from glm5_ascend.deploy.catalogue import hardware
from glm5_ascend.deploy.layout import Group
from glm5_ascend.errors import Glm5Error, brief
from glm5_ascend.files import make_folder, open_regular

SCHEMA = 1
ROLES = ("mixed", "prefill", "decode")
QUANTS = ("bf16", "w8a8", "w4a8")
CACHES = ("bf16", "li-c8", "sfa-c8", "both")
MOST_BYTES = 1 << 20
_MOST_PARTS = 100_000
_HINT = "write it with glm5-ascend plan --out, or see deploy/README.md for the keys"
_KEYS = {"schema", "model", "quant", "kv", "release", "hardware", "roles", "predicted"}
_CI_KEYS = {"deployment", "templates", "test_cases"}
_ROLE_KEYS = {"role", "nodes", "layout", "flags", "env", "additional_config"}

Value = str | int | float | bool | None | list["Value"] | dict[str, "Value"]


class PlanError(Glm5Error):
    """A plan file that cannot be read, or a plan that contradicts itself."""


@dataclass(frozen=True, slots=True)
class RolePlan:
    """One instance: the servers it takes, its layout, and what its command sets.

    Attributes:
        role: ``mixed``, ``prefill`` or ``decode``.
        nodes: numbers of its servers, from 0, in the order of its DP ranks.
        layout: ``Group`` as text, one copy.
        flags: vLLM's long flags without dashes; true stands for a flag without value.
        env: environment variables.
        additional_config: vllm-ascend's ``--additional-config``.
    """

    role: str
    nodes: tuple[int, ...]
    layout: str
    flags: Mapping[str, Value] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    additional_config: Mapping[str, Value] = field(default_factory=dict)

    @property
    def group(self) -> Group:
        """The layout, parsed."""
        return Group.parse(self.layout)


@dataclass(frozen=True, slots=True)
class Plan:
    """A deployment: model, formats, release, hardware, roles and what was predicted of it."""

    model: str
    quant: str
    kv: str
    release: str
    sku: str
    servers: int
    roles: tuple[RolePlan, ...]
    predicted: Mapping[str, Value] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """The file's form, schema 1."""
        return {
            "schema": SCHEMA,
            "model": self.model,
            "quant": self.quant,
            "kv": self.kv,
            "release": self.release,
            "hardware": {"sku": self.sku, "servers": self.servers},
            "roles": [{**asdict(role), "nodes": list(role.nodes)} for role in self.roles],
            "predicted": dict(self.predicted),
        }

    def check(self, source: str = "plan") -> Plan:
        """Return the plan after checking that its parts agree.

        Raises:
            PlanError: they do not; the message says where.
        """
        _choice(source, "quant", self.quant, QUANTS)
        _choice(source, "kv", self.kv, CACHES)
        per_server = hardware(f"{self.sku}:{self.servers}").sku.dies_per_server
        if not self.roles:
            raise PlanError(f"{source}: it has no roles", _HINT)
        kinds = {role.role for role in self.roles}
        if kinds not in ({"mixed"}, {"prefill", "decode"}):
            raise PlanError(f"{source}: roles {', '.join(sorted(kinds))} do not serve", _HINT)
        taken: set[int] = set()
        for number, role in enumerate(self.roles):
            where = f"{source}: roles[{number}]"
            group = role.group
            if group.copies != 1:
                raise PlanError(f"{where}: one role is one instance", "list it once per instance")
            servers = math.ceil(group.dies / per_server)
            if len(role.nodes) != servers:
                raise PlanError(
                    f"{where}: {role.layout} takes {servers} servers of {per_server} dies,"
                    f" {len(role.nodes)} are named",
                    "name as many nodes as the layout fills",
                )
            for node in role.nodes:
                if not 0 <= node < self.servers or node in taken:
                    raise PlanError(
                        f"{where}: node {node} is not free", "nodes are 0 to servers - 1, each once"
                    )
                taken.add(node)
        return self

    def text(self) -> str:
        """The file as YAML."""
        import yaml

        return str(yaml.safe_dump(self.as_dict(), sort_keys=False, width=100))

    def dump(self, path: Path) -> None:
        """Write the plan as YAML, whole or not at all; it is checked first, folders are made."""
        text = self.check(str(path)).text()
        make_folder(path)
        if path.exists() and not path.is_file():  # a pipe or a device
            path.write_text(text, encoding="utf-8")
            return
        draft = path.with_name(f".{path.name}.part")
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)

    @classmethod
    def load(cls, path: Path) -> Plan:
        """Read and check a plan file.

        Raises:
            PlanError: not YAML, another schema, missing, unknown or contradicting keys.
            OSError: the file cannot be opened.
        """
        with open_regular(path) as stream:
            raw = stream.read(MOST_BYTES + 1)
        if len(raw) > MOST_BYTES:
            raise PlanError(f"{path} is larger than 1 MiB", _HINT)
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise PlanError(f"{path} is no YAML: it is not UTF-8 text", _HINT) from error
        return cls.read(load_yaml(text, str(path)), str(path))

    @classmethod
    def read(cls, data: object, source: str) -> Plan:
        """Check what a plan file holds; raises ``PlanError``."""
        if isinstance(data, dict) and "schema" not in data and data.keys() & _CI_KEYS:
            raise PlanError(
                f"{source} is a CI file of vllm-ascend, not a plan",
                "make one of it first: glm5-ascend render FILE --format plan --out DIR",
            )
        schema = data.get("schema", SCHEMA) if isinstance(data, dict) else SCHEMA
        if type(schema) is not int or schema != SCHEMA:
            raise PlanError(f"{source}: schema {brief(schema)}, not {SCHEMA}", _HINT)
        if isinstance(data, dict):
            data = {"predicted": {}, **data}  # a plan written by hand predicts nothing
        return _plan(_object(data, source, _KEYS), source).check(source)


def load_yaml(text: str, source: str) -> object:
    """A YAML document of the user: plain values, every key once.

    Raises:
        PlanError: it cannot be read, or is endless once its aliases are followed.
    """
    import yaml

    from glm5_ascend.yaml_file import UniqueLoader

    try:
        document = yaml.load(text, UniqueLoader)
    except (yaml.YAMLError, RecursionError) as error:
        deep = isinstance(error, RecursionError)
        reason = "nested too deeply" if deep else " ".join(str(error).split())
        raise PlanError(f"{source} is no YAML: {reason}", _HINT) from error
    _refuse_odd(document, source)
    return document


def _refuse_odd(document: object, source: str) -> None:
    """Refuse values that JSON and a shell do not have, and aliases in aliases."""
    count, open_ = 0, [document]
    while open_:
        value = open_.pop()
        count += 1
        if count > _MOST_PARTS:
            raise PlanError(f"{source} has more than {_MOST_PARTS:,} parts", "write no aliases")
        if isinstance(value, dict):
            open_ += [*value, *value.values()]
        elif isinstance(value, list):
            open_ += value
        elif isinstance(value, str):
            # Half a surrogate cannot be written, and no shell has a NUL.
            if any(char == "\0" or "\ud800" <= char <= "\udfff" for char in value):
                raise PlanError(f"{source}: {brief(value)} is no text", "correct the text")
        elif isinstance(value, float) and not math.isfinite(value):
            raise PlanError(f"{source}: {value} is no number", "give a number")
        elif value is not None and not isinstance(value, int | float):
            raise PlanError(
                f"{source}: {brief(value)} is no text and no number", "put it in quotes"
            )


def _plan(data: dict[str, object], source: str) -> Plan:
    machine = _object(data["hardware"], f"{source}: hardware", {"sku", "servers"})
    roles = data["roles"]
    if not isinstance(roles, list):
        raise PlanError(f"{source}: `roles` is no list", _HINT)
    return Plan(
        model=_text(data, "model", source),
        quant=_text(data, "quant", source),
        kv=_text(data, "kv", source),
        release=_text(data, "release", source),
        sku=_text(machine, "sku", source),
        servers=_count(machine["servers"], f"{source}: hardware.servers", low=1),
        roles=tuple(_role(role, f"{source}: roles[{n}]") for n, role in enumerate(roles)),
        predicted=_mapping(data["predicted"], f"{source}: predicted"),
    )


def _role(value: object, where: str) -> RolePlan:
    data = _object(value, where, _ROLE_KEYS)
    nodes = data["nodes"]
    if not isinstance(nodes, list):
        raise PlanError(f"{where}: `nodes` is no list", _HINT)
    _choice(where, "role", data["role"], ROLES)
    env = _mapping(data["env"], f"{where}: env")
    if any(not isinstance(text, str) for text in env.values()):
        raise PlanError(f"{where}: a value of `env` is no text", "put it in quotes")
    return RolePlan(
        role=str(data["role"]),
        nodes=tuple(_count(node, f"{where}: nodes") for node in nodes),
        layout=str(Group.parse(_text(data, "layout", where))),
        flags=_mapping(data["flags"], f"{where}: flags"),
        env={name: str(text) for name, text in env.items()},
        additional_config=_mapping(data["additional_config"], f"{where}: additional_config"),
    )


def _object(value: object, where: str, keys: set[str]) -> dict[str, object]:
    if not isinstance(value, dict):
        raise PlanError(f"{where} is no mapping", _HINT)
    for key in sorted(keys - value.keys()):
        raise PlanError(f"{where}: missing key `{key}`", _HINT)
    for key in value.keys() - keys:
        raise PlanError(
            f"{where}: unknown key {brief(key)}", f"known are {', '.join(sorted(keys))}"
        )
    return value


def _mapping(value: object, where: str) -> dict[str, Value]:
    if not isinstance(value, dict) or any(not isinstance(key, str) for key in value):
        raise PlanError(f"{where} is no mapping from names", _HINT)
    return value


def _text(data: Mapping[str, object], key: str, where: str) -> str:
    value = data[key]
    if not isinstance(value, str) or not value:
        raise PlanError(f"{where}: `{key}` is no text", _HINT)
    return value


def _count(value: object, where: str, low: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value < 1 << 16:
        raise PlanError(f"{where}: {brief(value)} is no number from {low}", _HINT)
    return value


def _choice(where: str, key: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise PlanError(f"{where}: `{key}` is {brief(value)}", f"known are {', '.join(known)}")

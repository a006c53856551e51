"""Frozen dataclasses from YAML files and ``key=value`` overrides, with errors that say where.

Knows only how values are read; what they mean stays with the dataclass they build.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import io
import json
import math
import types
import typing
from pathlib import Path
from typing import Any, TypeVar

import yaml

T = TypeVar("T")

# The C loader is twenty times faster and is in every wheel; a source build may lack it.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


# Begins the name of what a value was read from where that was no file.
_OVERRIDE = "override "


class ConfigurationError(ValueError):
    """A configuration that cannot be used; the message names file, line and what was expected."""


@dataclasses.dataclass(frozen=True)
class _Source:
    name: str

    def error(self, node: yaml.Node, message: str) -> ConfigurationError:
        mark = node.start_mark
        where = mark.name if mark.name.startswith(_OVERRIDE) else f"{self.name}:{mark.line + 1}"
        return ConfigurationError(f"{where}: {message}")


def load(cls: type[T], path: str | Path, overrides: typing.Sequence[str] = ()) -> T:
    """Build dataclass ``cls`` from a YAML file.

    Args:
        cls: a dataclass; nested dataclasses, ``tuple``, ``Literal`` and ``| None`` are understood.
        path: the YAML file.
        overrides: ``"a.b=value"`` strings that replace what the file says.

    Raises:
        ConfigurationError: the file is missing or not YAML, a key is unknown (the nearest
            known one is named), a value has the wrong type, or the dataclass refuses it.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {error}") from error
    return loads(cls, text, str(path), overrides)


def loads(cls: type[T], text: str, name: str, overrides: typing.Sequence[str] = ()) -> T:
    """Build dataclass ``cls`` from YAML text; ``name`` stands for the file in errors. See `load`."""
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{name}: not valid YAML: {error}") from error
    if node is None:
        node = yaml.compose("{}", Loader=_Loader)
    assert node is not None
    source = _Source(name)
    if not isinstance(node, yaml.MappingNode):
        raise source.error(node, "expected a mapping of keys to values")
    for override in overrides:
        _override(node, override)
    value = _build(cls, node, source, "")
    return typing.cast(T, value)


def from_dict(cls: type[T], data: dict[str, Any], name: str) -> T:
    """Build dataclass ``cls`` from plain data, such as a manifest's; ``name`` stands in errors."""
    # JSON is YAML, and quicker to write.
    return loads(cls, json.dumps(data), name)


def to_dict(config: Any) -> dict[str, Any]:
    """A configuration dataclass as plain data that YAML and JSON can write and `from_dict` reads."""
    plain = _plain(config)
    assert isinstance(plain, dict)
    return plain


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    if isinstance(value, float) and math.isinf(value):
        # JSON has no infinity; `_build_scalar` reads the word back as a number.
        return "inf" if value > 0 else "-inf"
    return value


def _override(root: yaml.MappingNode, override: str) -> None:
    name = f"{_OVERRIDE}{override!r}"
    key, equals, text = override.partition("=")
    if not equals:
        raise ConfigurationError(f"{name}: expected key=value")
    stream = io.StringIO(text.strip() or "null")
    stream.name = name
    try:
        value = yaml.compose(stream, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{name}: not valid YAML: {error}") from error
    if value is None:
        raise ConfigurationError(f"{name}: expected a value, found a comment")
    node = root
    *parents, last = key.strip().split(".")
    for parent in parents:
        child = next((v for k, v in node.value if k.value == parent), None)
        if child is None:
            child = yaml.MappingNode("tag:yaml.org,2002:map", [], value.start_mark, value.end_mark)
            node.value.append((_key_node(parent, value), child))
        if not isinstance(child, yaml.MappingNode):
            raise ConfigurationError(f"{name}: {parent} is not a group of keys")
        node = child
    node.value = [(k, v) for k, v in node.value if k.value != last]
    node.value.append((_key_node(last, value), value))


def _key_node(key: str, value: yaml.Node) -> yaml.ScalarNode:
    return yaml.ScalarNode("tag:yaml.org,2002:str", key, value.start_mark, value.end_mark)


def _build(kind: Any, node: yaml.Node, source: _Source, key: str) -> Any:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _build_union(kind, node, source, key)
    if origin is typing.Literal:
        allowed = typing.get_args(kind)
        value = _scalar(node, source, key)
        if value not in allowed:
            raise source.error(node, f"{key} is {value!r}, expected one of {', '.join(map(str, allowed))}")
        return value
    if origin is tuple:
        return _build_tuple(kind, node, source, key)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _build_dataclass(kind, node, source, key)
    return _build_scalar(kind, node, source, key)


def _build_union(kind: Any, node: yaml.Node, source: _Source, key: str) -> Any:
    members = typing.get_args(kind)
    if type(None) in members and isinstance(node, yaml.ScalarNode) and _scalar(node, source, key) is None:
        return None
    members = tuple(m for m in members if m is not type(None))
    if len(members) != 1:
        raise TypeError(f"{key}: only 'X | None' unions can be configured, not {kind}")
    return _build(members[0], node, source, key)


def _build_tuple(kind: Any, node: yaml.Node, source: _Source, key: str) -> tuple[Any, ...]:
    if not isinstance(node, yaml.SequenceNode):
        raise source.error(node, f"{key} is not a list")
    members = typing.get_args(kind)
    if len(members) == 2 and members[1] is Ellipsis:
        members = (members[0],) * len(node.value)
    if len(members) != len(node.value):
        raise source.error(node, f"{key} has {len(node.value)} entries, expected {len(members)}")
    return tuple(
        _build(member, child, source, f"{key}[{i}]")
        for i, (member, child) in enumerate(zip(members, node.value, strict=True))
    )


def _build_dataclass(kind: type, node: yaml.Node, source: _Source, key: str) -> Any:
    if not isinstance(node, yaml.MappingNode):
        raise source.error(node, f"{key} is not a group of keys")
    hints = typing.get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}
    values: dict[str, Any] = {}
    for key_node, value_node in node.value:
        name = str(key_node.value)
        full = f"{key}.{name}" if key else name
        if name not in fields:
            near = difflib.get_close_matches(name, fields, n=1, cutoff=0.0)
            raise source.error(
                key_node,
                f"unknown key {full!r}, the nearest known key is {near[0]!r} (known: {', '.join(fields)})",
            )
        if name in values:
            raise source.error(key_node, f"key {full!r} stands twice")
        values[name] = _build(hints[name], value_node, source, full)
    missing = [
        f.name
        for f in fields.values()
        if f.name not in values
        and f.default is dataclasses.MISSING
        and f.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise source.error(node, f"{key or kind.__name__} lacks {', '.join(missing)}")
    try:
        return kind(**values)
    except ConfigurationError:
        raise
    except ValueError as error:
        raise source.error(node, str(error)) from error


def _scalar(node: yaml.Node, source: _Source, key: str) -> Any:
    if not isinstance(node, yaml.ScalarNode):
        raise source.error(node, f"{key} is a group or list, expected a single value")
    try:
        return yaml.SafeLoader("").construct_object(node)
    except (ValueError, yaml.YAMLError) as error:
        raise source.error(node, f"{key}: {error}") from error


def _build_scalar(kind: Any, node: yaml.Node, source: _Source, key: str) -> Any:
    value = _scalar(node, source, key)
    if kind is float:
        if isinstance(value, str):
            # YAML 1.1 reads 1e-3 (no dot) as text; people write it all the time.
            try:
                value = float(value)
            except ValueError:
                value = None
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value:
            # A whole number of hundreds of digits is no float.
            with contextlib.suppress(OverflowError):
                return float(value)
    elif (kind is int and isinstance(value, int) and not isinstance(value, bool)) or (
        kind in (bool, str) and isinstance(value, kind)
    ):
        return value
    raise source.error(node, f"{key} is {node.value!r}, expected {_KIND_NAMES.get(kind, kind)}")


_KIND_NAMES = {float: "a number", int: "a whole number", bool: "true or false", str: "text"}

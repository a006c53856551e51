"""What YAML becomes, and that every refusal says where and what."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanpilot.configuration import ConfigurationError, from_dict, load, loads, to_dict
from scanpilot.sac_ae_caps import AgentConfig


@dataclass(frozen=True)
class Inner:
    rate: float = 1.0
    kind: Literal["fast", "slow"] = "fast"

    def __post_init__(self) -> None:
        if self.rate < 0.0:
            raise ValueError("rate must not be negative")


@dataclass(frozen=True)
class Outer:
    name: str
    count: int = 3
    big: float = math.inf
    on: bool = False
    pair: tuple[float, float] = (0.0, 1.0)
    many: tuple[int, ...] = ()
    maybe: float | None = None
    inner: Inner = field(default_factory=Inner)


def read(text: str, *overrides: str) -> Outer:
    return loads(Outer, text, "file.yaml", overrides)


def test_defaults_stand_where_the_file_is_silent() -> None:
    assert read("name: a") == Outer("a")


def test_every_kind_of_value() -> None:
    value = read(
        "name: a\ncount: 7\nbig: 2\non: true\npair: [1, 2.5]\nmany: [1, 2, 3]\nmaybe: 4\n"
        "inner: {rate: 5, kind: slow}"
    )
    assert value == Outer("a", 7, 2.0, True, (1.0, 2.5), (1, 2, 3), 4.0, Inner(5.0, "slow"))
    assert isinstance(value.big, float)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-3", 0.001), ("1.0e-3", 0.001), ("2E5", 2e5), ("3", 3.0), ("'2.5'", 2.5),
     (".inf", math.inf), ("inf", math.inf), ("-inf", -math.inf), ("-.inf", -math.inf)],
)  # fmt: skip
def test_numbers_as_people_write_them(text: str, value: float) -> None:
    assert read(f"name: a\nbig: {text}").big == value


def test_null_is_none_where_none_is_allowed() -> None:
    assert read("name: a\nmaybe: null").maybe is None
    with pytest.raises(ConfigurationError, match=r"file\.yaml:2: big"):
        read("name: a\nbig: null")


def test_unknown_key_names_file_line_and_nearest_key() -> None:
    with pytest.raises(ConfigurationError, match=r"file\.yaml:3: unknown key 'cuont', .*nearest.* 'count'"):
        read("name: a\n\ncuont: 4")


def test_unknown_nested_key_is_named_in_full() -> None:
    with pytest.raises(ConfigurationError, match=r"file\.yaml:4: unknown key 'inner\.rat', .*'rate'"):
        read("name: a\ninner:\n  kind: slow\n  rat: 4")


def test_key_that_stands_twice_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"file\.yaml:3: key 'count' stands twice"):
        read("name: a\ncount: 1\ncount: 2")


def test_missing_keys_are_named() -> None:
    with pytest.raises(ConfigurationError, match=r"file\.yaml:1: Outer lacks name"):
        read("count: 1")
    with pytest.raises(ConfigurationError, match=r"file\.yaml:1: Outer lacks name"):
        read("")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("count: 1.5", "whole number"),
        ("count: true", "whole number"),
        ("count: many", "whole number"),
        ("big: yes", "a number"),
        ("big: .nan", "a number"),
        ("big: nan", "a number"),
        ("big: abc", "a number"),
        ("big: [1]", "single value"),
        ("big: 1" + "0" * 400, "a number"),
        ("on: 1", "true or false"),
        ("name: 5", "text"),
        ("pair: [1]", "1 entries, expected 2"),
        ("pair: 1", "not a list"),
        ("pair: [1, a]", r"pair\[1\]"),
        ("many: [1, 2.5]", r"many\[1\]"),
        ("inner: 5", "group of keys"),
        ("inner: {kind: medium}", "fast, slow"),
        ("inner: {rate: -1}", "rate must not be negative"),
        ("maybe: text", "a number"),
        ("big: !!python/object:os.system x", "python/object"),
    ],
)
def test_wrong_values_are_refused_with_file_line_and_expectation(line: str, expected: str) -> None:
    head = "" if line.startswith("name") else "name: a"
    with pytest.raises(ConfigurationError, match=rf"(?s)file\.yaml:2: .*{expected}"):
        read(f"{head}\n{line}")


@pytest.mark.parametrize("text", ["- a\n- b", "just text", "5"])
def test_a_file_that_is_no_mapping_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"file\.yaml:1: expected a mapping"):
        read(text)


@pytest.mark.parametrize("text", ["name: [a", "name: a\n\tcount: 1", "name: a: b", "@"])
def test_broken_yaml_names_the_file(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"file\.yaml: not valid YAML"):
        read(text)


def test_missing_binary_and_directory_files_are_named(tmp_path: Path) -> None:
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00name")
    for path in (tmp_path / "none.yaml", binary, tmp_path):
        with pytest.raises(ConfigurationError, match=str(path)):
            load(Outer, path)


def test_overrides_replace_and_add() -> None:
    value = read(
        "name: a\ncount: 1\ninner: {rate: 2}", "count=5", "inner.kind=slow", "inner.rate=1e-2", "pair=[3, 4]"
    )
    assert value == Outer("a", count=5, pair=(3.0, 4.0), inner=Inner(0.01, "slow"))


def test_override_opens_a_group_the_file_lacks() -> None:
    assert read("name: a", "inner.rate=7").inner == Inner(7.0)


def test_the_last_override_wins() -> None:
    assert read("name: a", "count=5", "count=6").count == 6


def test_override_can_set_none() -> None:
    assert read("name: a\nmaybe: 3", "maybe=null").maybe is None


@pytest.mark.parametrize(
    "override",
    ["count", "count=abc", "cuont=3", "count.x=3", "pair=[1", "inner.rate=-1", "=3", "inner=5", "count=#5"],
)
def test_bad_override_is_refused_and_named(override: str) -> None:
    # Not by the file's name alone: the file is in order, the command line is not.
    with pytest.raises(ConfigurationError, match=re.escape(f"override '{override}'")):
        read("name: a", override)


def test_round_trip_keeps_infinity_nesting_and_none() -> None:
    value = Outer("x", 1, math.inf, True, (-math.inf, 0.1), (4, 5), None, Inner(1e-7, "slow"))
    assert from_dict(Outer, to_dict(value), "memory") == value


@given(
    st.builds(
        Outer,
        name=st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=("Cc", "Cs")), max_size=8),
        big=st.floats(allow_nan=False),
        pair=st.tuples(st.floats(allow_nan=False), st.floats(allow_nan=False)),
        maybe=st.none() | st.floats(allow_nan=False),
        many=st.lists(st.integers(), max_size=3).map(tuple),
    )
)
def test_round_trip_is_exact(value: Any) -> None:
    assert from_dict(Outer, to_dict(value), "memory") == value


def test_round_trip_of_a_real_configuration() -> None:
    config = AgentConfig(gamma=0.5, caps_on="unsquashed")
    assert from_dict(AgentConfig, to_dict(config), "memory") == config

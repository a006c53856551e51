"""Shipped files are found by name, and anything else is refused with the nearest name."""

from __future__ import annotations

from pathlib import Path

import pytest

import scanpilot
from scanpilot import resources
from scanpilot.checkpoint import CheckpointError


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for file in (
        "config/robots/generic_diff.yaml",
        "worlds/cave.world",
        "models/generic_diff/card.md",
        "package.xml",
    ):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("")
    monkeypatch.setattr(resources, "__file__", str(tmp_path / "src/scanpilot/resources.py"))
    return tmp_path


def test_a_name_is_found_among_the_shipped_files(tree: Path) -> None:
    assert resources.find("robot", "generic_diff") == tree / "config/robots/generic_diff.yaml"
    assert resources.find("world", "cave") == tree / "worlds/cave.world"
    assert resources.find("policy", "generic_diff") == tree / "models/generic_diff"


def test_a_path_is_taken_as_it_is(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.yaml").write_text("")
    (tmp_path / "generic_diff").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resources.find("robot", tmp_path / "own.yaml") == tmp_path / "own.yaml"
    assert resources.find("policy", "./generic_diff").resolve() == tmp_path / "generic_diff"
    assert resources.find("policy", "generic_diff") == tree / "models/generic_diff"


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("robot", "generic_dif", "did you mean generic_diff?"),
        ("world", "office", "shipped are: cave"),
        ("robot", "no/such.yaml", "no such file"),
    ],
)
def test_an_unknown_one_is_refused_with_what_there_is(
    tree: Path, kind: resources.Kind, name: str, message: str
) -> None:
    with pytest.raises(FileNotFoundError) as error:
        resources.find(kind, name)
    assert message in str(error.value)
    assert name in str(error.value)


@pytest.mark.parametrize("library", ["lib/python3.11/site-packages", "local/lib/python3.11/dist-packages"])
def test_an_installation_finds_its_prefix(tree: Path, monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    share = tree / "share/scanpilot"
    share.mkdir(parents=True)
    (tree / "config").rename(share / "config")
    (tree / "package.xml").rename(share / "package.xml")
    monkeypatch.setattr(resources, "__file__", str(tree / library / "scanpilot/resources.py"))
    assert resources.root() == share


def test_the_prefix_of_an_overlay_is_found(
    tree: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory
) -> None:
    prefix = tmp_path_factory.mktemp("prefix")
    (prefix / "share/scanpilot/config").mkdir(parents=True)
    (prefix / "share/scanpilot/package.xml").write_text("")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    monkeypatch.setattr(resources, "__file__", str(elsewhere / "a/b/c/resources.py"))
    monkeypatch.setattr(resources.sysconfig, "get_path", lambda _: str(elsewhere))
    with pytest.raises(FileNotFoundError, match="AMENT_PREFIX_PATH"):
        resources.root()
    monkeypatch.setenv("AMENT_PREFIX_PATH", f"/nonexistent:{prefix}")
    assert resources.root() == prefix / "share/scanpilot"


def test_a_released_policy_is_loaded_by_its_name_wherever_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert scanpilot.load_policy("generic_diff").name == "generic_diff"
    with pytest.raises(CheckpointError, match="no_such_policy"):
        scanpilot.load_policy("no_such_policy")

"""Exports do what torch does, travel whole, and run where there is no torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("onnxruntime", reason="extra onnx is not installed")
pytest.importorskip("onnxscript", reason="extra export is not installed")

import onnx

from scanpilot import checkpoint, export
from scanpilot.checkpoint import CheckpointError
from scanpilot.guidance import GuidanceSpec
from scanpilot.manifest import NetworkConfig, PolicyManifest
from scanpilot.networks import new_networks
from scanpilot.observation import ObservationSpec, probe
from scanpilot.policy import Policy
from scanpilot.robot import Footprint, Lidar, Limits, RobotSpec
from scanpilot.types import InvalidInput

ROBOT = RobotSpec(
    "test", "omnidirectional", Footprint(radius=0.2), Limits(vx=0.5, vy=0.3, wz=2.0), Lidar(beams=36)
)


def write(directory: Path, convolution: str, beams: int, seed: int = 0, guided: bool = False) -> Path:
    torch.manual_seed(seed)
    config = NetworkConfig(convolution, 4, 8, (16,), (16,))  # type: ignore[arg-type]
    guidance = GuidanceSpec(clearance=0.27, comfort=0.4) if guided else None
    observation = ObservationSpec(beams=beams, frames=2, guidance=guidance)
    manifest = PolicyManifest("test", ROBOT, observation, config, 0.2)
    checkpoint.write_policy(directory, manifest, *new_networks(manifest))
    return directory


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write(tmp_path_factory.mktemp("export") / "policy", "patches", 40)
    (directory / "README.md").write_text("a card")
    export.to_onnx(directory, None)
    return directory


@pytest.fixture
def copy(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "policy"))


def both(path: Path) -> tuple[Policy, Policy]:
    return checkpoint.load_policy(path, "torch"), checkpoint.load_policy(path, "onnx")


def test_onnx_in_the_directory_is_the_same_policy(exported: Path) -> None:
    by_torch, by_onnx = both(exported)
    assert (by_torch.inference.backend, by_onnx.inference.backend) == ("torch", "onnx")
    assert by_torch.identity == by_onnx.identity
    assert by_torch.manifest == by_onnx.manifest
    triplets = probe(by_torch.observation)
    assert np.ptp(by_torch.act(triplets), axis=0).max() > 0.01
    # Any number of robots at once, and one alone.
    for some in (triplets, triplets[:1], triplets[1:3], triplets[2]):
        np.testing.assert_allclose(by_onnx.act(some), by_torch.act(some), atol=1e-5)
        np.testing.assert_allclose(by_onnx.reconstruct(some), by_torch.reconstruct(some), rtol=1e-4)
    assert (exported / "README.md").read_text() == "a card"


def test_overlapping_convolutions_and_guidance_too(tmp_path: Path) -> None:
    directory = write(tmp_path / "policy", "overlapping", 37, guided=True)
    file, difference = export.to_onnx(directory, tmp_path / "out" / "alone.onnx")
    assert difference < 1e-5
    by_torch, alone = checkpoint.load_policy(directory), checkpoint.load_policy(file)
    triplets = probe(by_torch.observation)
    np.testing.assert_allclose(alone.act(triplets), by_torch.act(triplets), atol=1e-5)
    assert (alone.identity, alone.manifest) == (by_torch.identity, by_torch.manifest)
    assert "exports" not in json.loads((directory / "policy.json").read_text())


def test_drives_where_there_is_no_torch(exported: Path) -> None:
    program = """
import sys
sys.modules["torch"] = None
import scanpilot
from scanpilot.observation import probe
for backend in ("onnx", "auto"):
    policy = scanpilot.load_policy(sys.argv[1], backend)
    print(policy.inference.backend, policy.act(probe(policy.observation)[0]).tolist())
try:
    scanpilot.load_policy(sys.argv[1], "torch")
except ValueError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(exported)], capture_output=True, text=True, timeout=60, check=True
    )
    onnx_line, auto_line, refusal = done.stdout.splitlines()
    assert onnx_line == auto_line
    assert onnx_line.startswith("onnx [")
    assert refusal.endswith("backend torch needs torch, which is not installed")


def test_loading_by_onnx_leaves_an_installed_torch_alone(exported: Path) -> None:
    program = (
        "import sys, scanpilot; scanpilot.load_policy(sys.argv[1], 'onnx'); print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(exported)], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "False\n"


def test_without_an_export_the_remedy_is_said(copy: Path) -> None:
    write(copy, "patches", 40)
    with pytest.raises(CheckpointError, match=r"holds no policy\.onnx: run `scanpilot export .* --onnx`"):
        checkpoint.load_policy(copy, "onnx")


def test_a_damaged_file_is_refused(copy: Path) -> None:
    file = copy / checkpoint.ONNX
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"policy\.onnx: does not match the checksum"):
        checkpoint.load_policy(copy, "onnx")
    # Torch does not need it.
    assert checkpoint.load_policy(copy, "torch").name == "test"
    with pytest.raises(CheckpointError, match=r"policy\.onnx: .*cannot read it"):
        checkpoint.load_policy(file)


def test_weights_changed_in_a_file_that_travels_alone_are_noticed(copy: Path, tmp_path: Path) -> None:
    model = onnx.load(copy / checkpoint.ONNX)
    weights = max(model.graph.initializer, key=lambda one: len(one.raw_data))
    weights.raw_data = bytes(len(weights.raw_data))
    onnx.save(model, tmp_path / "changed.onnx")
    with pytest.raises(CheckpointError, match="gives other actions than torch did"):
        checkpoint.load_policy(tmp_path / "changed.onnx")


def test_an_export_of_another_policy_is_refused(copy: Path, exported: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other", "patches", 40, seed=1)
    checkpoint.add_onnx(other, (exported / checkpoint.ONNX).read_bytes())
    with pytest.raises(CheckpointError, match="was exported from another policy"):
        checkpoint.load_policy(other, "onnx")


def test_somebody_elses_onnx_file_is_refused(copy: Path, tmp_path: Path) -> None:
    model = onnx.load(copy / checkpoint.ONNX)
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "other.onnx")
    with pytest.raises(CheckpointError, match="not written by `scanpilot export`"):
        checkpoint.load_policy(tmp_path / "other.onnx")
    with pytest.raises(CheckpointError, match="torch cannot run an ONNX file"):
        checkpoint.load_policy(tmp_path / "other.onnx", "torch")


def test_an_export_that_acts_differently_is_not_kept(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write(tmp_path / "policy", "patches", 40, seed=1)
    # To make an ONNX file takes seconds; the one of another policy does as well.
    monkeypatch.setattr(export, "_onnx", lambda *_: (exported / checkpoint.ONNX).read_bytes())
    for file in (tmp_path / "alone.onnx", None):
        with pytest.raises(InvalidInput, match="ONNX does not do what torch does"):
            export.to_onnx(directory, file)
    monkeypatch.setattr(export, "TOLERANCE", -1.0)
    with pytest.raises(InvalidInput, match="TorchScript does not do what torch does"):
        export.to_torchscript(directory, tmp_path / "policy.pt")
    assert [p.name for p in tmp_path.iterdir()] == ["policy"]
    assert not (directory / checkpoint.ONNX).exists()


def test_torchscript_and_pth(exported: Path, tmp_path: Path) -> None:
    assert export.to_torchscript(exported, tmp_path / "policy.pt") < 1e-5
    files = export.to_pth(exported, tmp_path / "pth")
    assert [f.name for f in files] == ["encoder.pth", "actor.pth", "decoder.pth"]
    actor = torch.load(tmp_path / "pth" / "actor.pth", weights_only=True)
    manifest = checkpoint.load_policy(exported).manifest
    network, _ = new_networks(manifest)
    network.actor.load_state_dict(actor)

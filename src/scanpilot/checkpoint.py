"""Policy directories and training states on disk: write, publish, validate, load.

A policy directory is what is published, released and deployed::

    policy.json          manifest: schema, algorithm, robot, observation, networks, provenance, hashes
    actor.safetensors    encoder and actor
    decoder.safetensors  the autoencoder's other half
    policy.onnx          all of it for ONNX Runtime, where `export` has put it

A run keeps ``policies/<step>-<identity>/``, ``policies/latest`` and ``policy``, the last two
symbolic links that are replaced atomically: a reader sees the old policy or the new one,
whole. Nothing here executes code from a file: tensors travel as safetensors, the rest as JSON.

Torch is imported only when it is asked for: a robot that drives by ONNX Runtime need not have it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import logging
import os
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from scanpilot import configuration, resources
from scanpilot.manifest import NetworkConfig, PolicyManifest
from scanpilot.observation import ObservationSpec, probe
from scanpilot.policy import Inference, Policy, named_inputs
from scanpilot.robot import RobotSpec
from scanpilot.types import InvalidInput

if TYPE_CHECKING:
    from torch import nn

    from scanpilot.onnx_inference import OnnxInference
    from scanpilot.torch_inference import TorchInference

logger = logging.getLogger(__name__)

# ``auto`` is torch where it is installed, and ONNX Runtime elsewhere.
Backend = Literal["auto", "torch", "onnx"]

SCHEMA_VERSION = 1
ALGORITHM = "SAC-AE-CAPS"
MANIFEST = "policy.json"
ACTOR = "actor.safetensors"
DECODER = "decoder.safetensors"
ONNX = "policy.onnx"
# Under these names an ONNX file holds the manifest it belongs to, and what torch made of `probe`.
ONNX_MANIFEST, ONNX_PROBE = "scanpilot.policy", "scanpilot.probe"
LATEST = "latest"

_MAX_MANIFEST = 1 << 20
_MAX_WEIGHTS = 256 << 20
_KEPT = 5
_STATE = "state.json"
_TENSORS = "tensors.safetensors"
# By how much an action may differ from what torch computed on another machine.
_PROBE_TOLERANCE = 1e-3


class CheckpointError(ValueError):
    """A policy directory or training state that must not be used; names the file and the reason."""


def write_policy(directory: Path, manifest: PolicyManifest, network: nn.Module, decoder: nn.Module) -> str:
    """Write a policy directory, whole or not at all, replacing one that is there.

    Returns:
        The identity of what was written, as `Policy.identity` will say.

    Raises:
        CheckpointError: the networks hold a number that is not finite.
        OSError: the disk is full, read-only, ...; what was there before still stands.
    """
    weights = {ACTOR: _serialised(network, ACTOR), DECODER: _serialised(decoder, DECODER)}
    document = {
        "schema_version": SCHEMA_VERSION,
        "algorithm": ALGORITHM,
        **configuration.to_dict(manifest),
        "files": {name: _sha256(data) for name, data in weights.items()},
    }
    document["manifest_sha256"] = _manifest_hash(document)
    _write_directory(directory, {**weights, MANIFEST: _as_text(document)})
    return _identity(document)


def _serialised(module: nn.Module, name: str) -> bytes:
    from scanpilot import tensors

    try:
        return tensors.serialise_module(module)
    except ValueError as error:
        raise CheckpointError(f"{name}: {error}; not written") from error


def add_onnx(directory: Path, model: bytes) -> None:
    """Put an ONNX file into a policy directory; it stays the same policy, with the same identity.

    Raises:
        CheckpointError: the directory holds no usable policy.
        OSError: the disk is full, read-only, ...; what was there before still stands.
    """
    directory = _resolve(directory)
    document = _read_manifest(directory / MANIFEST)
    # What else lies there, such as a model card, stays.
    files = {p.name: p.read_bytes() for p in directory.iterdir() if p.is_file()}
    document["exports"] = {ONNX: _sha256(model)}
    _write_directory(directory, {**files, ONNX: model, MANIFEST: _as_text(document)})


def publish(run: Path, manifest: PolicyManifest, network: nn.Module, decoder: nn.Module, step: int) -> Path:
    """Write a policy into a run directory and make ``run/policy`` point at it, atomically.

    The newest few are kept. Returns the directory of the new one.
    """
    policies = run / "policies"
    policies.mkdir(parents=True, exist_ok=True)
    staging = policies / f".{uuid.uuid4().hex}"
    identity = write_policy(staging, manifest, network, decoder)
    final = policies / f"{step:09d}-{identity}"
    if final.exists():
        shutil.rmtree(staging)
    else:
        os.rename(staging, final)
    _point(policies / LATEST, final.name)
    _point(run / "policy", f"policies/{LATEST}")
    _sync_directory(policies)
    _prune(policies, keep=final)
    return final


def load_policy(path: str | Path, backend: Backend = "auto") -> Policy:
    """Load a policy directory, a run directory's ``policy``, or an ONNX file; whole or not at all.

    A word that is no path may be the name of a released policy.

    Checks schema, hashes, shapes, that every weight is finite, and a warm-up output.

    Raises:
        CheckpointError: names the file and the reason.
    """
    path = Path(path)
    if not path.exists():
        with contextlib.suppress(FileNotFoundError):
            path = resources.names("policy").get(str(path), path)
    if path.suffix == ".onnx" and not path.is_dir():
        return _load_onnx_file(path, backend)
    if not (path / MANIFEST).is_file() and (path / "policy" / MANIFEST).is_file():
        path = path / "policy"
    while True:
        # Resolve links once: `latest` may move while the files are being read.
        directory = _resolve(path)
        try:
            return _load_directory(directory, backend)
        except CheckpointError as error:
            # Read so slowly that five newer ones were published and this one pruned: take the newest.
            if not isinstance(error.__cause__, FileNotFoundError) or _resolve(path) == directory:
                raise


def read_manifest(path: str | Path) -> PolicyManifest:
    """What the policy in a directory is, without loading it.

    Raises:
        CheckpointError: names the file and the reason.
    """
    file = _resolve(Path(path)) / MANIFEST
    return _parse_manifest(_read_manifest(file), file)


def _resolve(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"{path}: cannot be followed: {error}") from error


def _load_directory(directory: Path, backend: Backend) -> Policy:
    path = directory / MANIFEST
    document = _read_manifest(path)
    manifest = _parse_manifest(document, path)
    inference: Inference
    if _chosen(backend, path) == "torch":
        inference = _load_torch(directory, document, manifest)
    else:
        expected = document.get("exports", {}).get(ONNX)
        if expected is None:
            raise CheckpointError(
                f"{directory}: holds no {ONNX}: run `scanpilot export {directory} --onnx` where torch is"
            )
        data = _read_checked(directory / ONNX, str(expected))
        inference, embedded = _load_onnx(data, directory / ONNX)
        if embedded["manifest_sha256"] != document["manifest_sha256"]:
            raise CheckpointError(f"{directory / ONNX}: was exported from another policy: export it again")
    policy = Policy(manifest, inference, _identity(document))
    _warm_up(policy, directory)
    return policy


def _load_onnx_file(path: Path, backend: Backend) -> Policy:
    if backend == "torch":
        raise CheckpointError(f"{path}: torch cannot run an ONNX file: use backend onnx")
    inference, document = _load_onnx(_read(path, _MAX_WEIGHTS), path)
    policy = Policy(_parse_manifest(document, path), inference, _identity(document))
    _warm_up(policy, path)
    return policy


def _chosen(backend: Backend, path: Path) -> Literal["torch", "onnx"]:
    """Which backend it is, where what it needs is installed."""
    found = {
        name: importlib.util.find_spec(module) is not None
        for name, module in (("torch", "torch"), ("onnx", "onnxruntime"))
    }
    if backend == "auto":
        if not any(found.values()):
            raise CheckpointError(f"{path}: neither torch nor onnxruntime is installed to run it")
        return "torch" if found["torch"] else "onnx"
    if not found[backend]:
        package = {"torch": "torch", "onnx": "onnxruntime"}[backend]
        raise CheckpointError(f"{path}: backend {backend} needs {package}, which is not installed")
    return backend


def _load_torch(directory: Path, document: dict[str, Any], manifest: PolicyManifest) -> TorchInference:
    import torch

    from scanpilot import tensors
    from scanpilot.networks import new_networks
    from scanpilot.torch_inference import TorchInference

    try:
        # Without memory for their weights, so that absurd sizes cost nothing.
        with torch.device("meta"):
            network, decoder = new_networks(manifest)
    except (ValueError, TypeError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise CheckpointError(
            f"{directory / MANIFEST}: networks of the sizes it states cannot be made: {reason}"
        ) from error
    for name, module in ((ACTOR, network), (DECODER, decoder)):
        data = _read_checked(directory / name, str(document["files"][name]))
        try:
            tensors.load_module(module, data)
        except ValueError as error:
            raise CheckpointError(f"{directory / name}: {error}") from error
    return TorchInference(network, decoder)


def _load_onnx(data: bytes, path: Path) -> tuple[OnnxInference, dict[str, Any]]:
    """The networks in an ONNX file and the manifest that travels with them."""
    from scanpilot.onnx_inference import OnnxInference

    try:
        inference = OnnxInference(data)
        metadata = inference.metadata
        document, expected = metadata[ONNX_MANIFEST], json.loads(metadata[ONNX_PROBE])
    except KeyError as error:
        raise CheckpointError(f"{path}: lacks {error}: not written by `scanpilot export`") from error
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}") from error
    parsed = _check_manifest(document.encode(), path)
    observation = _parse_manifest(parsed, path).observation
    try:
        actions = inference.actions(named_inputs(probe(observation)))
        close = np.allclose(actions, np.array(expected, np.float32), rtol=0.0, atol=_PROBE_TOLERANCE)
    except Exception as error:
        # A graph of other inputs; ONNX Runtime's errors have no common base but Exception.
        raise CheckpointError(f"{path}: does not run: {str(error).partition(chr(10))[0]}") from error
    if not close:
        raise CheckpointError(f"{path}: gives other actions than torch did: damaged, export it again")
    return inference, parsed


def _read_manifest(path: Path) -> dict[str, Any]:
    return _check_manifest(_read(path, _MAX_MANIFEST), path)


def _check_manifest(data: bytes, path: Path) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise CheckpointError(f"{path}: expected a JSON object")
    version = document.get("schema_version")
    if version != SCHEMA_VERSION:
        raise CheckpointError(f"{path}: schema version {version!r}, this release reads {SCHEMA_VERSION}")
    if document.get("algorithm") != ALGORITHM:
        raise CheckpointError(f"{path}: algorithm {document.get('algorithm')!r}, expected {ALGORITHM!r}")
    files = document.get("files")
    if not isinstance(files, dict) or set(files) != {ACTOR, DECODER}:
        raise CheckpointError(f"{path}: 'files' must list {ACTOR} and {DECODER}")
    if document.get("manifest_sha256") != _manifest_hash(document):
        raise CheckpointError(f"{path}: does not match its own checksum: damaged or edited by hand")
    return document


def _parse_manifest(document: dict[str, Any], path: Path) -> PolicyManifest:
    def part(cls: type[Any], key: str) -> Any:
        value = document.get(key)
        if not isinstance(value, dict):
            raise CheckpointError(f"{path}: lacks {key!r}")
        try:
            return configuration.from_dict(cls, value, f"{path} ({key})")
        except configuration.ConfigurationError as error:
            raise CheckpointError(str(error)) from error

    period, name = document.get("control_period"), document.get("name")
    if not isinstance(period, (int, float)) or isinstance(period, bool) or not 0.0 < period <= 2.0:
        raise CheckpointError(f"{path}: control_period {period!r} is not usable")
    if not isinstance(name, str):
        raise CheckpointError(f"{path}: name {name!r} is not text")
    summaries = {key: document.get(key, {}) for key in ("training", "evaluation")}
    for key, summary in summaries.items():
        if not isinstance(summary, dict):
            raise CheckpointError(f"{path}: {key!r} is not a group of keys")
    return PolicyManifest(
        name=name,
        robot=part(RobotSpec, "robot"),
        observation=part(ObservationSpec, "observation"),
        network=part(NetworkConfig, "network"),
        control_period=float(period),
        **summaries,
    )


def _warm_up(policy: Policy, path: Path) -> None:
    """Acts and reconstructs, to see that finite numbers come of it."""
    triplet = probe(policy.observation)
    try:
        policy.act(triplet)
        finite = bool(np.isfinite(policy.reconstruct(triplet)).all())
    except InvalidInput as error:
        raise CheckpointError(f"{path}: warm-up failed: {error}") from error
    if not finite:
        raise CheckpointError(f"{path}: warm-up failed: the reconstruction is not finite")


def write_state(directory: Path, tree: dict[str, Any]) -> None:
    """Write a training state: nested dicts and lists of tensors, arrays, numbers and text.

    Raises:
        OSError: the disk is full, read-only, ...; what was there before still stands.
    """
    from scanpilot import tensors

    plain, data = tensors.lift(tree)
    document = {
        "schema_version": SCHEMA_VERSION,
        "tensors_sha256": _sha256(data),
        "state_sha256": _state_hash(plain),
        "state": plain,
    }
    _write_directory(directory, {_TENSORS: data, _STATE: json.dumps(document).encode()})


def read_state(directory: Path) -> dict[str, Any]:
    """Read what `write_state` wrote.

    Raises:
        CheckpointError: names the file and the reason.
    """
    from scanpilot import tensors

    directory = directory.resolve()
    path = directory / _STATE
    try:
        document = json.loads(_read(path, _MAX_WEIGHTS))
        version = document["schema_version"]
        if version != SCHEMA_VERSION:
            raise CheckpointError(f"{path}: schema version {version!r}, this release reads {SCHEMA_VERSION}")
        expected, plain = document["tensors_sha256"], document["state"]
        intact = document["state_sha256"] == _state_hash(plain)
    except CheckpointError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: not a training state: {error}") from error
    if not intact:
        raise CheckpointError(f"{path}: does not match its own checksum: damaged or edited by hand")
    data = _read(directory / _TENSORS, None)
    if _sha256(data) != expected:
        raise CheckpointError(f"{directory / _TENSORS}: does not match the checksum in {_STATE}")
    try:
        return tensors.drop(plain, data)
    except ValueError as error:
        raise CheckpointError(f"{directory / _TENSORS}: {error}") from error


def _manifest_hash(document: dict[str, Any]) -> str:
    # An export changes nothing of what the policy is, and is bound to it by its own content.
    rest = {k: v for k, v in document.items() if k not in ("manifest_sha256", "exports")}
    return _sha256(json.dumps(rest, sort_keys=True).encode())


def _state_hash(plain: Any) -> str:
    return _sha256(json.dumps(plain, sort_keys=True).encode())


def _identity(document: dict[str, Any]) -> str:
    return str(document["manifest_sha256"])[:12]


def _as_text(document: dict[str, Any]) -> bytes:
    return json.dumps(document, indent=2).encode()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _read(path: Path, limit: int | None) -> bytes:
    try:
        if limit is not None and path.stat().st_size > limit:
            raise CheckpointError(f"{path}: {path.stat().st_size} bytes, expected at most {limit}")
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error


def _read_checked(path: Path, expected_hash: str) -> bytes:
    data = _read(path, _MAX_WEIGHTS)
    if _sha256(data) != expected_hash:
        raise CheckpointError(f"{path}: does not match the checksum in {MANIFEST}: truncated or damaged")
    return data


def _write_directory(directory: Path, files: dict[str, bytes]) -> None:
    """Write to a temporary sibling, sync, rename."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    staging = directory.parent / f".{directory.name}.{uuid.uuid4().hex}"
    staging.mkdir()
    try:
        for name, data in files.items():
            with open(staging / name, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        _sync_directory(staging)
        _replace_directory(staging, directory)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    _sync_directory(directory.parent)


def _replace_directory(new: Path, directory: Path) -> None:
    if not directory.exists():
        os.rename(new, directory)
        return
    # A directory cannot be renamed over a full one. Between the two renames there is none:
    # a reader then fails to find it and tries again; who must not wait uses `publish`.
    old = new.with_name(new.name + ".old")
    os.rename(directory, old)
    try:
        os.rename(new, directory)
    except OSError:
        os.rename(old, directory)
        raise
    shutil.rmtree(old)


def recover_directory(directory: Path) -> None:
    """Undo a replacement of ``directory`` that was killed between its two renames, and tidy up."""
    leftovers = sorted(directory.parent.glob(f".{directory.name}.*"))
    if not directory.exists():
        complete = [p for p in leftovers if p.name.endswith(".old")]
        if complete:
            os.rename(complete[-1], directory)
            logger.warning("%s: restored after an interrupted write", directory)
    for path in leftovers:
        shutil.rmtree(path, ignore_errors=True)


def _point(link: Path, target: str) -> None:
    staging = link.with_name(f".{link.name}.{uuid.uuid4().hex}")
    os.symlink(target, staging)
    try:
        os.replace(staging, link)
    except OSError:
        staging.unlink(missing_ok=True)
        raise


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _prune(policies: Path, keep: Path) -> None:
    published = sorted(
        p for p in policies.iterdir() if p.is_dir() and not p.is_symlink() and p.name[0] != "."
    )
    for old in published[:-_KEPT]:
        if old != keep:
            shutil.rmtree(old, ignore_errors=True)

"""Policy directories and training states on disk: write, publish, validate, load.

A policy directory is what is published, released and deployed::

    policy.json          manifest: schema, algorithm, robot, observation, networks, provenance, hashes
    actor.safetensors    encoder and actor
    decoder.safetensors  the autoencoder's other half

A run keeps ``policies/<step>-<identity>/``, ``policies/latest`` and ``policy``, the last two
symbolic links that are replaced atomically: a reader sees the old policy or the new one,
whole. Nothing here executes code from a file: tensors travel as safetensors, the rest as JSON.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import struct
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from safetensors.torch import save as serialise_tensors
from torch import Tensor, nn

from scanpilot import configuration
from scanpilot.networks import NetworkConfig
from scanpilot.observation import ObservationSpec
from scanpilot.policy import Policy, PolicyManifest, PolicyNetwork, new_networks
from scanpilot.robot import RobotSpec
from scanpilot.types import InvalidInput, Triplet

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 1
ALGORITHM = "SAC-AE-CAPS"
MANIFEST = "policy.json"
ACTOR = "actor.safetensors"
DECODER = "decoder.safetensors"
LATEST = "latest"

_MAX_MANIFEST = 1 << 20
_MAX_WEIGHTS = 256 << 20
_KEPT = 5
_STATE = "state.json"
_TENSORS = "tensors.safetensors"


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
    weights = {
        ACTOR: serialise_tensors(_finite_state(network, ACTOR)),
        DECODER: serialise_tensors(_finite_state(decoder, DECODER)),
    }
    document = {
        "schema_version": SCHEMA_VERSION,
        "algorithm": ALGORITHM,
        **configuration.to_dict(manifest),
        "files": {name: _sha256(data) for name, data in weights.items()},
    }
    document["manifest_sha256"] = _manifest_hash(document)
    text = json.dumps(document, indent=2).encode()
    _write_directory(directory, {**weights, MANIFEST: text})
    return str(document["manifest_sha256"])[:12]


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


def load_policy(path: str | Path) -> Policy:
    """Load a policy directory, or a run directory's ``policy``; whole or not at all.

    Checks schema, hashes, shapes, that every weight is finite, and a warm-up output.

    Raises:
        CheckpointError: names the file and the reason.
    """
    path = Path(path)
    if not (path / MANIFEST).is_file() and (path / "policy" / MANIFEST).is_file():
        path = path / "policy"
    while True:
        # Resolve links once: `latest` may move while the files are being read.
        directory = _resolve(path)
        try:
            return _load_directory(directory)
        except CheckpointError as error:
            # Read so slowly that five newer ones were published and this one pruned: take the newest.
            if not isinstance(error.__cause__, FileNotFoundError) or _resolve(path) == directory:
                raise


def _resolve(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"{path}: cannot be followed: {error}") from error


def _load_directory(directory: Path) -> Policy:
    document = _read_manifest(directory / MANIFEST)
    manifest = _parse_manifest(document, directory / MANIFEST)
    network, decoder = _empty_networks(manifest, directory / MANIFEST)
    for name, module in ((ACTOR, network), (DECODER, decoder)):
        _load_weights(directory / name, module, str(document["files"][name]))
    policy = Policy(manifest, network, decoder, str(document["manifest_sha256"])[:12])
    _warm_up(policy, directory)
    return policy


def _empty_networks(manifest: PolicyManifest, path: Path) -> tuple[PolicyNetwork, nn.Module]:
    """Networks without memory for their weights, so that absurd sizes cost nothing."""
    try:
        with torch.device("meta"):
            return new_networks(manifest)
    except (ValueError, TypeError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise CheckpointError(f"{path}: networks of the sizes it states cannot be made: {reason}") from error


def _read_manifest(path: Path) -> dict[str, Any]:
    data = _read(path, _MAX_MANIFEST)
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


def _load_weights(path: Path, module: nn.Module, expected_hash: str) -> None:
    data = _read(path, _MAX_WEIGHTS)
    if _sha256(data) != expected_hash:
        raise CheckpointError(f"{path}: does not match the checksum in {MANIFEST}: truncated or damaged")
    tensors = _parse(data, path)
    wanted = module.state_dict()
    if tensors.keys() != wanted.keys():
        odd = sorted(tensors.keys() ^ wanted.keys())
        raise CheckpointError(f"{path}: tensors missing or unknown: {', '.join(odd[:5])}")
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape:
            raise CheckpointError(
                f"{path}: {name} has shape {tuple(tensor.shape)}, expected {tuple(wanted[name].shape)}"
            )
        if tensor.dtype != wanted[name].dtype:
            raise CheckpointError(f"{path}: {name} is of {tensor.dtype}, expected {wanted[name].dtype}")
        if not torch.isfinite(tensor).all():
            raise CheckpointError(f"{path}: {name} holds a number that is not finite")
    # Cloned: parsed tensors are views of the file's bytes.
    module.load_state_dict({name: tensor.clone() for name, tensor in tensors.items()}, assign=True)


def _parse(data: bytes, path: Path) -> dict[str, Tensor]:
    try:
        # safetensors believes the header's length; a file shorter than it says is refused here.
        (header,) = struct.unpack("<Q", data[:8])
        if header > len(data) - 8:
            raise CheckpointError(f"{path}: header of {header} bytes in a file of {len(data)}")
        tensors: dict[str, Tensor] = parse_tensors(data)
        return tensors
    except (SafetensorError, struct.error, ValueError) as error:
        raise CheckpointError(f"{path}: not a safetensors file: {error}") from error


def _warm_up(policy: Policy, directory: Path) -> None:
    """One act and one reconstruction in a room where everything is a few metres away."""
    k, n = policy.observation.scan_shape
    middle = min(max(3.0, policy.observation.range_min), policy.observation.range_max)
    triplet = Triplet(
        np.full((k, n), middle, np.float32), np.array([2.0, 0.5, 0.0], np.float32), np.zeros(3, np.float32)
    )
    try:
        policy.act(triplet)
        finite = bool(np.isfinite(policy.reconstruct(triplet)).all())
    except InvalidInput as error:
        raise CheckpointError(f"{directory}: warm-up failed: {error}") from error
    if not finite:
        raise CheckpointError(f"{directory}: warm-up failed: the reconstruction is not finite")


def write_state(directory: Path, tree: dict[str, Any]) -> None:
    """Write a training state: nested dicts and lists of tensors, arrays, numbers and text.

    Raises:
        OSError: the disk is full, read-only, ...; what was there before still stands.
    """
    tensors: dict[str, Tensor] = {}
    plain = _lift_tensors(tree, "", tensors)
    data = serialise_tensors(tensors)
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
    tree = _drop_tensors(plain, _parse(data, directory / _TENSORS))
    assert isinstance(tree, dict)
    return tree


_TENSOR, _ARRAY = "$tensor", "$array"


def _lift_tensors(tree: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(tree, np.ndarray):
        tensors[path] = torch.from_numpy(tree.copy())
        return {_ARRAY: path}
    if isinstance(tree, Tensor):
        # A copy, since safetensors refuses tensors that share memory.
        tensors[path] = tree.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {_TENSOR: path}
    if isinstance(tree, dict):
        # Escaped as in a JSON pointer, so that {"a/b": ...} and {"a": {"b": ...}} stay apart.
        keys = {k: str(k).replace("~", "~0").replace("/", "~1") for k in tree}
        return {str(k): _lift_tensors(v, f"{path}/{keys[k]}", tensors) for k, v in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_lift_tensors(v, f"{path}/{i}", tensors) for i, v in enumerate(tree)]
    if isinstance(tree, np.generic):
        return tree.item()
    return tree


def _drop_tensors(plain: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(plain, dict):
        if plain.keys() == {_TENSOR}:
            return tensors[plain[_TENSOR]]
        if plain.keys() == {_ARRAY}:
            return tensors[plain[_ARRAY]].numpy()
        return {k: _drop_tensors(v, tensors) for k, v in plain.items()}
    if isinstance(plain, list):
        return [_drop_tensors(v, tensors) for v in plain]
    return plain


def _finite_state(module: nn.Module, name: str) -> dict[str, Tensor]:
    state = {k: v.detach().cpu().contiguous() for k, v in module.state_dict().items()}
    for key, tensor in state.items():
        if not torch.isfinite(tensor).all():
            raise CheckpointError(f"{name}: {key} holds a number that is not finite; not written")
    return state


def _manifest_hash(document: dict[str, Any]) -> str:
    rest = {k: v for k, v in document.items() if k != "manifest_sha256"}
    return _sha256(json.dumps(rest, sort_keys=True).encode())


def _state_hash(plain: Any) -> str:
    return _sha256(json.dumps(plain, sort_keys=True).encode())


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _read(path: Path, limit: int | None) -> bytes:
    try:
        if limit is not None and path.stat().st_size > limit:
            raise CheckpointError(f"{path}: {path.stat().st_size} bytes, expected at most {limit}")
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error


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

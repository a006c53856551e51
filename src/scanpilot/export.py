"""A policy in other programs' formats: ONNX, TorchScript, one ``.pth`` file a network.

Each export is read back and asked what torch was asked; one that answers otherwise is not kept.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from scanpilot import checkpoint
from scanpilot.checkpoint import CheckpointError
from scanpilot.observation import probe
from scanpilot.policy import Policy, named_inputs
from scanpilot.torch_inference import TorchInference, reconstruction
from scanpilot.types import FloatArray, InvalidInput

# By how much an action, a number from -1 to 1, may differ from torch's; metres for a range.
TOLERANCE = 1e-4
RANGE_TOLERANCE = 1e-2


class _Graph(nn.Module):
    """The networks as one function of arrays in the order of ``names``: actions and reconstruction."""

    def __init__(self, inference: TorchInference, names: tuple[str, ...]) -> None:
        super().__init__()
        self._network, self._decoder, self._names = inference.network, inference.decoder, names

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        named = dict(zip(self._names, inputs, strict=True))
        return self._network(**named), reconstruction(self._network, self._decoder, named["scan"])


def to_onnx(path: Path, file: Path | None) -> tuple[Path, float]:
    """Write a policy as ONNX.

    Args:
        path: a policy directory or a run.
        file: where to; ``None`` puts it into the policy directory, for nodes with ``backend: onnx``.

    Returns:
        The file, and by how much its actions differ from torch's at most.

    Raises:
        scanpilot.checkpoint.CheckpointError: the policy cannot be loaded.
        scanpilot.types.InvalidInput: the packages ``onnx`` and ``onnxscript`` are not there, or the
            exported networks do not do what torch's do.
    """
    policy, inference = _load(path)
    directory = _directory_of(path)
    document = (directory / checkpoint.MANIFEST).read_text(encoding="utf-8")
    data = _onnx(policy, inference, document)
    difference = _check_onnx(policy, data)
    if file is None:
        checkpoint.add_onnx(directory, data)
        return directory / checkpoint.ONNX, difference
    _write(file, lambda staging: staging.write_bytes(data))
    return file, difference


def _onnx(policy: Policy, inference: TorchInference, document: str) -> bytes:
    try:
        import onnx
        import onnxscript  # noqa: F401  what torch's exporter needs, and misses too late to say it well
    except ImportError as error:
        raise InvalidInput(
            f"export to ONNX needs the package {error.name}: pip install scanpilot[export]"
        ) from error
    names, tensors = _probe_tensors(policy)
    with _quiet():
        batch = torch.export.Dim("N")
        program = torch.onnx.export(
            _Graph(inference, names),
            tensors,
            input_names=list(names),
            output_names=["action", "reconstruction"],
            dynamic_shapes=(tuple({0: batch} for _ in names),),
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    model = program.model_proto
    expected = inference.actions(named_inputs(probe(policy.observation)))
    metadata = {checkpoint.ONNX_MANIFEST: document, checkpoint.ONNX_PROBE: json.dumps(expected.tolist())}
    onnx.helper.set_model_props(model, metadata)
    serialised: bytes = model.SerializeToString()
    return serialised


def _check_onnx(policy: Policy, data: bytes) -> float:
    try:
        from scanpilot.onnx_inference import OnnxInference
    except ImportError as error:
        raise InvalidInput(
            f"to check an export to ONNX needs the package {error.name}: pip install scanpilot[onnx]"
        ) from error
    exported = OnnxInference(data)
    return _compare(policy, lambda x: (exported.actions(x), exported.scans(x)), "ONNX")


def to_torchscript(path: Path, file: Path) -> float:
    """Write a policy for ``torch.jit.load``, which other programs can do in C++ too.

    Its inputs are the triplet's arrays, its outputs actions and reconstructed scans. Returns by how
    much its actions differ from the policy's at most.

    Raises:
        scanpilot.checkpoint.CheckpointError: the policy cannot be loaded.
        scanpilot.types.InvalidInput: the exported networks do not do what the policy's do.
    """
    policy, inference = _load(path)
    names, tensors = _probe_tensors(policy)

    def ask(module: torch.jit.ScriptModule, x: dict[str, FloatArray]) -> tuple[FloatArray, FloatArray]:
        with torch.inference_mode():
            action, scan = module(*(torch.from_numpy(x[name]) for name in names))
        return action.numpy(), scan.numpy()

    difference = 0.0

    def write(staging: Path) -> None:
        nonlocal difference
        with _quiet(), torch.no_grad():
            traced = torch.jit.trace(_Graph(inference, names), tensors, check_trace=False)
            traced.save(str(staging))
            loaded = torch.jit.load(str(staging))
        difference = _compare(policy, lambda x: ask(loaded, x), "TorchScript")

    _write(file, write)
    return difference


def to_pth(path: Path, directory: Path) -> list[Path]:
    """Write one file of weights a network: ``encoder.pth``, ``actor.pth``, ``decoder.pth``.

    Each is a dict of tensors, for ``torch.load(file, weights_only=True)``. From a run with its training
    state, ``critics.pth`` too.

    Raises:
        scanpilot.checkpoint.CheckpointError: the policy cannot be loaded.
    """
    _, inference = _load(path)
    states = {
        "encoder": inference.network.encoder.state_dict(),
        "actor": inference.network.actor.state_dict(),
        "decoder": inference.decoder.state_dict(),
    }
    if (path / "training").is_dir():
        states["critics"] = checkpoint.read_state(path / "training")["agent"]["modules"]["critics"]
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name, state in states.items():
        file = directory / f"{name}.pth"
        _write(file, lambda staging, state=state: torch.save(dict(state), staging))  # type: ignore[misc]
        again = torch.load(file, weights_only=True)
        if any(not torch.equal(again[key], value) for key, value in state.items()):
            raise CheckpointError(f"{file}: reads back other weights than were written")
        written.append(file)
    return written


def _load(path: Path) -> tuple[Policy, TorchInference]:
    policy = checkpoint.load_policy(path, "torch")
    assert isinstance(policy.inference, TorchInference)
    return policy, policy.inference


def _directory_of(path: Path) -> Path:
    return path if (path / checkpoint.MANIFEST).is_file() else path / "policy"


def _probe_tensors(policy: Policy) -> tuple[tuple[str, ...], tuple[Tensor, ...]]:
    inputs = named_inputs(probe(policy.observation))
    return tuple(inputs), tuple(torch.from_numpy(value) for value in inputs.values())


def _compare(
    policy: Policy, ask: Callable[[dict[str, FloatArray]], tuple[FloatArray, FloatArray]], what: str
) -> float:
    """Largest difference of an action, over a batch of any size and one robot alone.

    Raises:
        scanpilot.types.InvalidInput: it is too large.
    """
    batch = probe(policy.observation)
    worst = 0.0
    for triplet in (batch, batch[:1], batch[1:3]):
        inputs = named_inputs(triplet)
        actions, scans = ask(inputs)
        worst = max(worst, float(np.abs(actions - policy.inference.actions(inputs)).max()))
        far = float(np.abs(scans - policy.inference.scans(inputs)).max())
        if not (worst <= TOLERANCE and far <= RANGE_TOLERANCE):
            raise InvalidInput(
                f"{what} does not do what torch does: actions differ by {worst:.2g}, ranges by {far:.2g} m"
            )
    return worst


def _write(file: Path, write: Callable[[Path], object]) -> None:
    """Whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    staging = file.with_name(f".{file.name}.{uuid.uuid4().hex}")
    try:
        write(staging)
        os.replace(staging, file)
    except BaseException:
        staging.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Torch's exporters talk: of packages they could have used, of their own deprecations."""
    talkers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in talkers]
    for logger in talkers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(talkers, levels, strict=True):
            logger.setLevel(level)

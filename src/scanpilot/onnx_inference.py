"""A policy's networks run by ONNX Runtime: no torch, little memory. `export` writes the files it reads."""

from __future__ import annotations

from collections.abc import Mapping

import onnxruntime

from scanpilot.types import FloatArray

# Names of the graph's outputs.
ACTION = "action"
RECONSTRUCTION = "reconstruction"


class OnnxInference:
    """See `scanpilot.policy.Inference`.

    Args:
        model: content of the ONNX file.
        threads: one robot's network is too small to gain from a second.

    Raises:
        ValueError: ONNX Runtime cannot read it, or it lacks an output of ours; says which.
    """

    backend = "onnx"

    def __init__(self, model: bytes, threads: int = 1) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # Threads that spin while they wait take a core from the rest of the robot.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.inter_op.allow_spinning", "0")
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            # What it raises has no common base but Exception.
            raise ValueError(f"ONNX Runtime cannot read it: {str(error).partition(chr(10))[0]}") from error
        missing = {ACTION, RECONSTRUCTION} - {o.name for o in self._session.get_outputs()}
        if missing:
            raise ValueError(f"no output {' and no output '.join(sorted(missing))}")
        self._inputs = tuple(i.name for i in self._session.get_inputs())
        self._run = onnxruntime.RunOptions()
        # Whoever asks for the action does not pay for the decoder.
        self._run.only_execute_path_to_fetches = True

    @property
    def metadata(self) -> dict[str, str]:
        """Texts that travel in the file."""
        return dict(self._session.get_modelmeta().custom_metadata_map)

    def actions(self, inputs: Mapping[str, FloatArray]) -> FloatArray:
        """``(N, 3)`` mean actions, squashed."""
        return self._ask(ACTION, inputs)

    def scans(self, inputs: Mapping[str, FloatArray]) -> FloatArray:
        """``(N, n)`` what the autoencoder makes of the newest scans, metres."""
        return self._ask(RECONSTRUCTION, inputs)

    def _ask(self, output: str, inputs: Mapping[str, FloatArray]) -> FloatArray:
        feed = {name: inputs[name] for name in self._inputs}
        (out,) = self._session.run([output], feed, self._run)
        result: FloatArray = out
        return result

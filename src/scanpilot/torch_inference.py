"""A policy's networks run by torch."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from scanpilot.networks import PolicyNetwork
from scanpilot.observation import decode_scan, encode_scan
from scanpilot.types import FloatArray


class TorchInference:
    """See `scanpilot.policy.Inference`.

    Args:
        network: encoder and actor; set to evaluation here, its parameters to need no gradient.
        decoder: ``(B, F)`` features to encoded scans; likewise.
    """

    backend = "torch"

    def __init__(self, network: PolicyNetwork, decoder: nn.Module) -> None:
        self.network = network.eval().requires_grad_(False)
        self.decoder = decoder.eval().requires_grad_(False)

    @torch.inference_mode()
    def actions(self, inputs: Mapping[str, FloatArray]) -> FloatArray:
        """``(N, 3)`` mean actions, squashed."""
        out: FloatArray = self.network(**{k: torch.from_numpy(v) for k, v in inputs.items()}).numpy()
        return out

    @torch.inference_mode()
    def scans(self, inputs: Mapping[str, FloatArray]) -> FloatArray:
        """``(N, n)`` what the autoencoder makes of the newest scans, metres."""
        newest: FloatArray = reconstruction(
            self.network, self.decoder, torch.from_numpy(inputs["scan"])
        ).numpy()
        return newest


def reconstruction(network: PolicyNetwork, decoder: nn.Module, scan: Tensor) -> Tensor:
    """The newest of stacked scans ``(B, k, n)`` through the autoencoder and back: ``(B, n)``, metres."""
    feature = network.encoder(encode_scan(scan, torch))
    decoded: Tensor = decode_scan(decoder(feature), network.observation, torch)
    return decoded[:, -1]

"""Tiny networks gain nothing from threads, and lose a hundredfold where other processes want the cores."""

import torch

torch.set_num_threads(1)

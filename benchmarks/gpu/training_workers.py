"""As ``training``, from sampling processes: CPU workers, and one worker with a sampler on the GPU."""

from __future__ import annotations

import torch

from benchmarks._harness import Report
from benchmarks.gpu.limits import Limits
from benchmarks.gpu.training import compare


def measure(report: Report, device: torch.device, limits: Limits) -> None:
    compare(report, device, limits, in_workers=True)

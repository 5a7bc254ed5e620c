"""What this machine really does, beside what cost says."""

from anyformer.measure.calibrate import Machine, calibrate, gemm_peak, memory_bandwidth
from anyformer.measure.here import plan, roofline

__all__ = ["Machine", "calibrate", "gemm_peak", "memory_bandwidth", "plan", "roofline"]

"""Calibration learns from runs: fits of profiles, micro-benchmarks, residuals and their drift."""

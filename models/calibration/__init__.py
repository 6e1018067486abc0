"""What runs teach: fits of profiles, micro-benchmarks, residuals and their drift."""

"""Benchmarks: peers side by side in one run, alternating rounds, medians, results as JSON in var/bench/ (CONTRACT §5)."""

"""Benchmarks: each states its claim, checks correctness first, and measures the peers that are installed beside glt."""

"""Benchmarks: Headwater compared with minimal alternatives, in the same run on one machine."""

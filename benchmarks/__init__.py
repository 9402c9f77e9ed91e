"""Benchmarks: Headwater beside the least that anybody could do, in the same run on one machine."""

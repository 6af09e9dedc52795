"""Parallelism, one strategy per file; `parallelize` combines them."""

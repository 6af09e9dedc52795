"""What `benchmarks.trainer_peers` measures, and how each trainer is run: one process group a row."""

"""Removing checkpoints and code snapshots that nothing needs."""

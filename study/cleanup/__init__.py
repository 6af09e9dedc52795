"""Removal of checkpoints and code snapshots that nothing needs."""

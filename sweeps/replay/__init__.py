"""Replays schedulers on recorded learning curves with a virtual clock."""

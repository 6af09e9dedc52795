"""Checks during a run: bad steps, loss spikes, statistics of layers, diverging ranks, silent data corruption."""

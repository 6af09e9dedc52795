"""Watching a run: bad steps, loss spikes, layers' statistics, ranks that drift apart, corrupted arithmetic."""

"""Watching a study: slots on this machine, live progress, the process that sends metrics."""

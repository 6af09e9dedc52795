"""Staying with a study: local slots, live progress, the process that ships metrics."""

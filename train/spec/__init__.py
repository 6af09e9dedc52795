"""Shapes and counts of a run: its config, parameters, FLOPs and bytes. Pure Python, no torch."""

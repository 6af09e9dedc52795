"""A run by formula: its config, parameters, FLOPs, memory, messages and step time. Pure Python, no torch."""

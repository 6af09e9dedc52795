"""A run by formula: config, parameters, FLOPs, memory, messages and step time. Pure Python, no torch."""

"""Casts to 8-bit floats."""

"""Designs: which runs there are, decided before any of them starts. Pure functions."""

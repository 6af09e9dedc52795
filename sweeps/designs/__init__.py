"""Designs: all runs are decided before any of them starts. Pure functions."""

DESIGNS = ("grid", "isoflop", "ladder", "random_nd", "trunk_and_branch")
"""By the names of conf/search; `grid` is the lists after -m and nothing else."""

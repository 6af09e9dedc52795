"""SLURM."""

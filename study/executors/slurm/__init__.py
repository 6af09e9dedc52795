"""SLURM: job arrays by sbatch, squeue and sacct, nodes, limits, and what its words mean."""

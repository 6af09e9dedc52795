"""SLURM: job arrays through sbatch, squeue and sacct; nodes, limits and job states."""

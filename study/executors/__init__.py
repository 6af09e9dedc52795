"""Where runs are executed: processes of this machine, or SLURM."""

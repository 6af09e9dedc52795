"""Where and when: points, submission, SLURM, ledger, tracking, planning, the command line."""

"""What a study's folder holds: points, ledger, settings, attempts, checkpoints, outcomes."""

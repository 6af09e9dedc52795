"""`python -m study.sweep`: from Hydra overrides to submitted points."""

"""`python -m study.sweep`: Hydra in, submission out."""

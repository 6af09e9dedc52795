"""The search of `python -m study plan parallel`: which layout of a number of GPUs is fastest, and why."""

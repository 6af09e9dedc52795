"""What runs on a compute node: `python -m study.job`."""

"""The answer of `python -m study plan step`: how long a step takes on GPUs of a profile, and why."""

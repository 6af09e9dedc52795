"""What a model costs, exactly: parameters and FLOPs by component, and what each rank holds at each moment of a step.

Beside train.spec.footprint, which sizes jobs from above and stays as it is. Pure Python, like all of train.spec.
"""

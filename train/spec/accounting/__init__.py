"""Exact cost of a model: parameters and FLOPs by component, memory of each rank at each moment of a step.

train.spec.footprint, by which jobs are sized, is an estimate from above; for pipelines it takes the peak from here.
Pure Python, like all of train.spec.
"""

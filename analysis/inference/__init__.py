"""Uncertainty: resamples, intervals, profiles, comparison of laws."""

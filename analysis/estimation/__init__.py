"""Objective and optimiser."""

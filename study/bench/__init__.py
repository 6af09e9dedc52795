"""Measurements of a machine: communication, pipelines, parallel layouts and strategies."""

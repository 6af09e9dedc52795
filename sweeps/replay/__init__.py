"""Schedulers run against recorded learning curves, with a virtual clock."""

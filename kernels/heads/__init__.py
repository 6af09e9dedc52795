"""Heads of queries, keys and values."""

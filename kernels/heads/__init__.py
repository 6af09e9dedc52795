"""Queries, keys and values from one product: split into heads, normalized and rotated."""

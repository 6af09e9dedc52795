"""Rows of a table by their numbers."""

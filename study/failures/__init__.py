"""Kinds of failure and the retry policy. Pure functions."""

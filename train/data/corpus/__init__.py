"""Prepares a corpus from raw text, once and offline."""

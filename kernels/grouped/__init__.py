"""Grouped matrix products: rows times the matrix of their group."""

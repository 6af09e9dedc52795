"""Functional forms of scaling laws."""

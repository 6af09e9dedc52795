"""Shared by all operations: choice of the implementation, registration with torch, launches."""

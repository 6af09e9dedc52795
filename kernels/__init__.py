"""Triton kernels, their torch registration, their references."""

"""Attention: the layer, the kernel that computes it, and its masks."""

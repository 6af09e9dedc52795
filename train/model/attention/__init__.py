"""Attention: the layer, the kernel that computes it, and which keys a query sees."""

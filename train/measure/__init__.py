"""Measurements of links and devices: collectives by message size, matrix products, copies, launches."""

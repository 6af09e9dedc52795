"""The state of every point, cost and budget, and the selection of points."""

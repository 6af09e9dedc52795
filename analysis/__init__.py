"""What the runs say: scaling laws, intervals, plans, plots, the report."""

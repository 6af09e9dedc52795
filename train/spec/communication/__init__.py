"""What ranks send each other in a step, and what that costs: volumes by formula, times by alpha and beta."""

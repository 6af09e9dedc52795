"""What to train with a budget, and which runs to do next."""

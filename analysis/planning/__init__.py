"""What to train."""

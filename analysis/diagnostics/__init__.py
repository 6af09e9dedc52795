"""What must not pass in silence."""

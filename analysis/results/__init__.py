"""What a fit gives: all approaches, findings and the recommendation together."""

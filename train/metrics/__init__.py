"""What a run writes down of itself: losses, speed, times, profiles, its outcome."""

"""What a run records: losses, speed, times, profiles, its outcome."""

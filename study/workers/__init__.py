"""What advances a search's trials: the pool, its workers, jobs of one unit."""

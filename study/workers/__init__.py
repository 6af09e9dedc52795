"""Workers that advance a search's trials, in a pool or as one job per unit."""

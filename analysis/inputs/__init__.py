"""From files to one table of runs."""

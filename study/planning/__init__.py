"""Which points there are and what each job requests; plans of memory, step time and layouts. Pure functions."""

"""Which points there are, what each job requests, and plans of memory, step time and layouts. Pure."""

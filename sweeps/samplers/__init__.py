"""Which configuration a new trial tries: one sampler a file, each a function of the history and a seed."""

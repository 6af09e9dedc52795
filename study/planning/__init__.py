"""Which points, what each job asks for, and what it may take. Pure."""

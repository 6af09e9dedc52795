"""Which trial gets resource next: one scheduler a file, each a pure function of the events it was given."""

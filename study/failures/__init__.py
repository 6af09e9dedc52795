"""How an attempt ended, and what follows from it. Pure."""

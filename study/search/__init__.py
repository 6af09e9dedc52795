"""Searches that give budget as results come in: a log of events, and workers that claim units from it."""

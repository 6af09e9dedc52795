"""Searches: the event log, and the queue from which workers claim units."""

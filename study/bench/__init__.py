"""Measuring what a machine does, before runs are planned for it."""

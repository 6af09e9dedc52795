"""The idempotent step: what is wanted against what is observed."""

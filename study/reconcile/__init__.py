"""The idempotent step that compares what is wanted with what is observed, and acts on the difference."""

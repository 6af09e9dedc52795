"""From evidence to the state of every point; cost and budget; choosing points."""

"""The schema, composing it through Hydra, and errors in a user's words."""

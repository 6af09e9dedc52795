"""The schema of a config, its composition through Hydra, and errors that name the key."""

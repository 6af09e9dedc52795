"""Which runs get budget: designs, schedulers, replay. Pure decisions, no files and no clock."""

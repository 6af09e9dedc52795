"""Pipeline schedules as timelines: the order of passes, when each runs, and the bubble."""

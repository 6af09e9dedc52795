"""Pipeline schedules as timelines: the order of passes, when each runs, and how much of a step is idle."""

"""Which code a job runs, and the processes that are started here."""

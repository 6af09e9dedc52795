"""The version of the code that a job runs, and child processes."""

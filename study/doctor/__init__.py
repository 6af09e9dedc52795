"""What this machine and its cluster allow: queried, tried out in a test job, written as a cluster config."""

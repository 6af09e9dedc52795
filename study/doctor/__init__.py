"""What this machine and its cluster allow: asked, tried out in a test job, and written down as a cluster config."""

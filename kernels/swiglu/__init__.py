"""SwiGLU, and the feed-forward layer that keeps little of it."""

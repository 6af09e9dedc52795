"""SwiGLU, and a feed-forward layer that saves few activations."""

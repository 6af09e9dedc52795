"""SwiGLU, and a feed-forward layer that keeps few activations."""

"""AdamW over many tensors, and their gradient norm."""

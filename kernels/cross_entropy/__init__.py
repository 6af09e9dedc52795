"""Cross-entropy over a vocabulary, on logits or fused with the output head."""

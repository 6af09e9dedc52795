"""Cross-entropy over a vocabulary, on logits or in one with the output head."""

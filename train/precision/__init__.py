"""Number formats: which is used where, loss scaling for fp16, products in fp8, stochastic rounding."""

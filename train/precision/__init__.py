"""Number formats: which is used where, loss scaling for fp16, matrix products in fp8, stochastic rounding."""

"""How ranks share a model and its batch, one strategy a file; `apply` puts them together."""

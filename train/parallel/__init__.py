"""How ranks share a model and its batch, one strategy a file; `parallelize` puts them together."""

"""One run: model, parallelism, data, optimizer, checkpoint, health, metrics."""

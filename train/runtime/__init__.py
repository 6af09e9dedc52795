"""The process and its host: ranks, signals, heartbeats, compilation, the allocator."""

"""Memory: the allocator, the micro-batch, activation checkpointing, offloading to the CPU."""

from train.runtime.malloc import keep_freed_memory
from train.spec.footprint import micro_batch_sequences
from train.spec.micro_batch import even

__all__ = ["even", "keep_freed_memory", "micro_batch_sequences"]

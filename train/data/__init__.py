"""Text in, sequences of tokens out: preparing a corpus once, and reading it in a seeded order."""

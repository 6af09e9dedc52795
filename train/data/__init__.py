"""From text to sequences of tokens: prepares a corpus once and reads it in a seeded order."""

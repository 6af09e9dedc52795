"""Files on the shared disk: where everything lies, atomic writes, locks, logs, taking secrets out."""

"""Files on the shared disk: where everything lies, atomic writes, locks, logs, removing secrets."""

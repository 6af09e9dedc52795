"""Files on the shared disk: paths, atomic writes, locks, logs, removal of secrets."""

"""Why a run is slow, from profiler traces and step times. NumPy only, no torch."""

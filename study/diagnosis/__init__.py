"""Why a run is slow: what its profiler traces and its step times say. Without torch; NumPy only."""

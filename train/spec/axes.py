"""The axes of the mesh of ranks, outermost first."""

MESH_AXES = ("dp_replicate", "dp_shard", "cp", "tp", "pp")

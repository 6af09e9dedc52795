"""How trainers and ways of doing a study are run beside ours, for `trainer_peers`, `small_models` and `study_peers`."""

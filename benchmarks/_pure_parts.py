"""The pure modules (formulas and decisions, no files and no processes) with the tests that hold each of them."""

from __future__ import annotations

from benchmarks._swap import ROOT

SPEC = ("tests/train/spec",)
ACCOUNTING = ("tests/train/spec/accounting", "tests/benchmarks/test_memory_predicted.py")
COMMUNICATION = ("tests/train/spec/communication", "tests/train/parallel/test_parallel_traffic.py")
STEP_TIME = ("tests/train/spec/step_time", "tests/benchmarks/test_step_time_predicted.py")
HEALTH = tuple(f"tests/train/health/test_health_{name}.py" for name in ("decisions", "tokens", "inside", "monitor"))
OPTIM = (
    "tests/train/optim/test_optim_rules.py",
    "tests/train/optim/test_optim_param_groups.py",
    "tests/train/optim/test_optim_steps.py",
    "tests/train/spec/test_spec_recipe.py",
)
PACKING = tuple(f"tests/train/data/test_data_{name}.py" for name in ("packing", "dataset", "loss_mask", "by_hand"))
ANALYSIS = (*(str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests/analysis").rglob("test_exact_*.py"))),
            *(f"tests/analysis/{name}.py" for name in (
    "approaches/test_approaches", "approaches/test_curves", "approaches/test_settings", "approaches/test_surface",
    "approaches/test_valleys", "diagnostics/test_suspects", "estimation/test_engine", "estimation/test_newton",
    "estimation/test_ties", "inference/test_anywhere", "inference/test_intervals", "inference/test_law",
    "inference/test_pitfalls", "inference/test_scatter", "inference/test_simulation", "inputs/test_foreign",
    "inputs/test_frame", "inputs/test_large", "laws/test_forms", "laws/test_formulas", "planning/test_next",
    "planning/test_planning_beyond", "planning/test_plans", "report/test_sentences", "report/test_summary",
    "results/test_as_asked", "results/test_fit", "results/test_outside", "test_commands", "test_precision",
    "test_score", "text/test_human",
)))  # fmt: skip
SWEEPS = tuple(f"tests/sweeps/test_{name}.py" for name in (
    "asha_auto", "asha_guarded", "branch_designs", "densities", "draws", "isoflop_design", "pb2_choice", "pbt",
    "pbt_bandit", "pbt_decisions", "replay", "replay_by_hand", "rungs", "samplers", "schedulers", "space", "trials",
))  # fmt: skip
STUDY = tuple(f"tests/study/{name}.py" for name in (
    "commands/test_commands_shown", "executors/test_executors_by_hand", "executors/test_executors_limits",
    "executors/test_executors_queue_reasons", "failures/test_failures_kinds", "failures/test_failures_retry_policy",
    "failures/test_failures_words", "job/test_job", "job/test_job_blame", "job/test_job_lanes", "job/test_job_ranks",
    "planning/test_planning_sizing",
    "reconcile/test_reconcile_decide", "reconcile/test_reconcile_disk", "reconcile/test_reconcile_last",
    "reconcile/test_reconcile_retry", "reconcile/test_reconcile_two_phase", "records/test_records_lineage",
    "records/test_records_outcomes", "records/test_records_point", "search/test_search_ahead",
    "search/test_search_by_hand", "search/test_search_outlook", "search/test_search_retry", "search/test_search_shown",
    "search/test_search_usage", "status/test_status_budget", "status/test_status_cost", "status/test_status_filters",
    "status/test_status_overview", "status/test_status_selection", "status/test_status_states",
    "storage/test_storage_hostile", "storage/test_storage_study_names", "sweep/test_sweep_table", "test_text",
    "test_text_numbers",
))  # fmt: skip
PLANNING = ("tests/study/planning", "tests/train/spec/step_time")
DIAGNOSIS = ("tests/study/diagnosis",)
TESTS: dict[str, tuple[str, ...]] = {
    **{f"train/spec/{name}.py": SPEC for name in (
        "activations", "counts", "decoder", "deprecated", "device_choices", "device_peaks", "experts", "footprint",
        "from_mapping", "gpu_share", "later", "lineage", "mesh", "micro_batch", "mup", "optimizers", "pipeline_layout",
        "pipeline_schedule/closed_forms", "pipeline_schedule/observed", "pipeline_schedule/orders",
        "pipeline_schedule/simulation", "pipeline_schedule/trace", "precision", "recipe", "resolve", "scaling_rules",
        "shard_shapes", "step_graph", "yamlfile",
    )},
    **{f"train/spec/accounting/{name}.py": ACCOUNTING for name in (
        "flops", "held", "inference", "kept", "kv_cache", "outside", "parameters", "planned", "shapes", "step",
    )},
    **{f"train/spec/communication/{name}.py": COMMUNICATION for name in (
        "cluster", "costs", "data_parallel", "experts", "fit", "layers", "messages", "stages", "step",
    )},
    **{f"train/spec/step_time/{name}.py": STEP_TIME for name in (
        "attention", "block", "copies", "device", "ends", "experts", "host", "overlap", "predict", "products",
        "recompute", "result", "timeline", "update",
    )},
    "train/spec/schedule.py": ("tests/train/spec/test_spec_schedule.py", "tests/train/test_branch.py"),
    "train/data/best_fit.py": PACKING,
    "train/data/packing.py": PACKING,
    "train/data/rows.py": PACKING,
    "train/data/mixture.py": ("tests/train/data/test_data_mixture.py", "tests/train/data/test_data_by_hand.py"),
    "train/data/shuffle.py": tuple(f"tests/train/data/test_data_{name}.py" for name in (
        "shuffle", "mixture", "by_hand",
    )),
    **{f"train/precision/{name}.py": (
        f"tests/train/precision/test_precision_{name}.py", "tests/train/precision/test_precision_by_hand.py",
    ) for name in ("history", "loss_scaler", "stochastic_rounding")},
    "train/metrics/file.py": tuple(f"tests/train/metrics/test_metrics_{name}.py" for name in ("file", "rollbacks")),
    **{f"train/health/{name}.py": HEALTH for name in (
        "layer_statistics", "loss_spikes", "monitor", "nonfinite", "repeat_step", "replica_hashes", "shard_names",
        "tensor_hash", "token_entropy",
    )},
    **{f"train/optim/{name}.py": OPTIM for name in (
        "adamw", "muon", "param_groups", "sgd",
    )},
    "analysis/inputs/recorded.py": (
        "tests/train/metrics/test_metrics_file.py", "tests/study/tracking/test_tracking_metrics_reader.py",
        "tests/study/search/test_search_curves.py", "tests/analysis/inputs/test_exact_records.py",
    ),
    **{f"analysis/{name}.py": ANALYSIS for name in (
        "approaches/chance", "approaches/comparison", "approaches/compute_optimal", "approaches/cost",
        "approaches/curves",
        "approaches/drawn_envelope", "approaches/envelope", "approaches/frontier", "approaches/frontier_path",
        "approaches/isoflop", "approaches/loss_laws", "approaches/optimum", "approaches/parabola",
        "approaches/parametric", "approaches/power_laws", "approaches/settings", "approaches/surface",
        "approaches/valley_findings", "approaches/valley_options", "approaches/valleys", "backtest",
        "diagnostics/at_rows", "diagnostics/backtest", "diagnostics/exponent", "diagnostics/findings",
        "diagnostics/foreseen", "diagnostics/smooth", "diagnostics/two_units",
        "diagnostics/qualify", "diagnostics/schedule", "diagnostics/sensitivity", "diagnostics/suspects",
        "estimation/bounds", "estimation/constraints", "estimation/exchange", "estimation/fit_problem",
        "estimation/ladders", "estimation/level_ground", "estimation/levels", "estimation/multistart",
        "estimation/newton",
        "estimation/objectives", "estimation/observations", "estimation/optimizer", "estimation/settled",
        "estimation/ties", "inference/akaike", "inference/budget_drift",
        "inference/covariance", "inference/coverage", "inference/distributions", "inference/error_draws",
        "inference/estimate", "inference/findings", "inference/fit_law", "inference/flat", "inference/identifiability",
        "inference/inferred_law", "inference/intervals", "inference/law_result", "inference/nested_errors",
        "inference/prediction", "inference/profile_likelihood", "inference/refusals", "inference/resample_findings",
        "inference/resampling", "inference/scatter", "inference/schemes", "inference/selection", "inference/summary",
        "inputs/columns",
        "inputs/dataset", "inputs/foreign", "inputs/gaps", "inputs/large", "inputs/learning",
        "inputs/same_runs", "laws/base",
        "laws/broken", "laws/data_constrained", "laws/downstream", "laws/dual", "laws/farseer", "laws/kaplan",
        "laws/moe", "laws/multi_power", "laws/overtraining", "laws/quantization", "laws/registry", "laws/settings",
        "laws/sum_of_powers", "next", "plan", "planning/advice", "planning/basis", "planning/beyond",
        "planning/candidates",
        "planning/grid_share",
        "planning/next_runs", "planning/posterior", "planning/priors", "planning/recommend", "planning/run_noise",
        "planning/scenarios", "planning/shapes", "planning/study_config", "precision", "results/evidence",
        "results/as_fitted", "results/fit_keys",
        "results/law_comparison", "results/predicted", "results/single_law", "score", "text/numbers",
        "values/approach_lines", "values/choice_lines",
    )},
    **{f"sweeps/{name}.py": SWEEPS for name in (
        "designs/isoflop", "designs/ladder", "designs/random_nd", "designs/trunk_and_branch", "history",
        "rank_correlation", "replay/curves", "replay/decisions", "replay/policies", "replay/simulate", "rungs",
        "samplers/base", "samplers/grid", "samplers/random", "samplers/rung_density", "samplers/sobol",
        "schedulers/asha_auto", "schedulers/asha_guarded", "schedulers/asha_promotion", "schedulers/asha_stopping",
        "schedulers/base", "schedulers/drifting_gp", "schedulers/evidence", "schedulers/hyperband", "schedulers/pb2",
        "schedulers/pbt", "schedulers/random", "space",
    )},
    **{f"study/{name}.py": STUDY for name in (
        "executors/slurm/parse_limits", "executors/slurm/queue_reasons", "executors/slurm/start_estimate",
        "failures/kinds", "failures/retry_policy", "failures/words", "reconcile/decide", "reconcile/dependencies",
        "reconcile/failures", "reconcile/two_phase", "records/frozen_config", "records/lineage", "records/outcomes",
        "records/point", "search/course", "search/forecast", "search/outlook", "search/pareto", "search/retry",
        "search/usage",
        "status/budget", "status/filters", "status/selection", "status/states", "storage/study_names", "text",
    )},
    **{f"study/planning/{name}.py": PLANNING for name in (
        "designs", "memory/together", "packing", "parallel/auto", "parallel/pace", "parallel/room", "parallel/search",
        "parallel/space", "parallel/within", "sizing", "turns",
    )},
    **{f"study/diagnosis/{name}.py": DIAGNOSIS for name in (
        "causes", "intervals", "kernels", "memory", "operations", "shares", "stragglers", "windows",
    )},
}  # fmt: skip
"""Files whose mutants are made, with the tests that should notice them. Of tests that others' machines cannot run
(without Hydra, say) a word is printed, and they notice nothing."""

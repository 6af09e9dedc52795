"""What import-linter cannot say: of `train`, `study` may import the torch-free `train.spec` only."""

import ast
from pathlib import Path

STUDY = Path(__file__).parents[1] / "study"


def imported(path: Path) -> set[str]:
    """Return the full names of all modules that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def test_study_imports_of_train_its_spec_only() -> None:
    files = list(STUDY.rglob("*.py"))
    assert len(files) > 20
    wrong = {
        str(path): name
        for path in files
        for name in imported(path)
        if name.split(".")[0] == "train" and not f"{name}.".startswith("train.spec.") and name != "train"
    }
    assert not wrong

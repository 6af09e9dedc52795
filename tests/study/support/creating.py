"""Make MLflow's database: `python -m tests.study.support.creating FILE ARTIFACTS` prints whether it did."""

import sys
from pathlib import Path

from study.tracking.sqlite import create_database

if __name__ == "__main__":
    print(create_database(Path(sys.argv[1]), sys.argv[2]))

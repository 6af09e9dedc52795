"""`python -m study.search.worker`, as jobs name it that were submitted before workers had a package of their own."""

from study.workers.worker import main

if __name__ == "__main__":
    raise SystemExit(main())

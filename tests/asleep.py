"""`python -m tests.asleep`: a process that does nothing until it is ended."""

import time

while True:
    time.sleep(60)

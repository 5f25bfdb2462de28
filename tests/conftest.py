"""One thread per test process: two processes with two threads each only get in each other's way.

Ctrl-C acts in tests even where the shell that started them in the background has it ignored.
"""

import os
import signal

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

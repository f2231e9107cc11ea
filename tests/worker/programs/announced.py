"""A loop that knows nothing of torch."""

import sys
import time

import eroica

for _ in range(30):
    time.sleep(0.01)
    eroica.step()
sys.stdout.write(f"torch was imported: {'torch' in sys.modules}\n")

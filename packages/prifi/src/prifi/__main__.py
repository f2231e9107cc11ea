"""`python -m prifi`."""

from prifi.cli import main

main()

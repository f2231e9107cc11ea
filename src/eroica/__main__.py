"""`python -m eroica` is the command `eroica`."""

from eroica.cli import main

main()

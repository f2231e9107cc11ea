"""`python -m eroica` is the command `eroica`."""

from eroica.start import main

main()

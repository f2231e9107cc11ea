"""Run the command: `python -m verici`."""

from verici.cli import main

main(prog_name="verici")

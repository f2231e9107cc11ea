"""The command `eroica`: one file per command, imported only when it is called."""

from __future__ import annotations

import errno
import importlib
import sys

import click

from eroica import __version__
from eroica.errors import EroicaError, UsageError
from eroica.report.charset import write_what_the_locale_can

_COMMANDS = {
    "run": "Run a training command and watch it.",
    "profile": "Open a window on a running job now.",
    "top": "Watch a job that was started elsewhere, live in this terminal.",
    "status": "Show the jobs that are being watched.",
    "live": "Print the link to a running job's live page.",
    "diagnose": "Say what is wrong in profiler traces or Flight Recorder dumps.",
    "report": "Show a saved verdict again, without the traces.",
    "diff": "Say which functions got slower between two runs.",
    "serve": "Run the service that the jobs of a fleet report to.",
    "fleet": "Ask a fleet's service: hosts, jobs, functions, trends; tokens, projects.",
    "mcp": "Answer an AI assistant's questions about jobs.",
    "demo": "Watch a small real training job get slow and be diagnosed.",
    "sample": "Sample hardware channels into a directory.",
    "steer": "Start a job on several hosts, and again without a host that an order names.",
    "settings": "List every setting with its default and source.",
}


class _Commands(click.Group):
    """Looks commands up by name and imports them late: `eroica run` must start quickly."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order in which a newcomer needs them."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, None if there is none of this name."""
        if cmd_name not in _COMMANDS:
            return None
        command = getattr(importlib.import_module(f"eroica.cli.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that was asked for; a name that is nearly one gets a hint.

        Raises:
            click.UsageError: There is none of this name.
        """
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            near = difflib.get_close_matches(args[0], _COMMANDS, n=1)
            if not near:
                raise
            raise click.UsageError(f"{error.message} Did you mean '{near[0]}'?", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One line per command, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="eroica")
def group() -> None:
    """Eroica names the function, the workers and the resource that make a PyTorch training job slow.

    Start with:  eroica run -- torchrun --nproc-per-node 8 train.py
    """


def main() -> None:
    """Entry point: errors raised on purpose become one line and an exit status."""
    write_what_the_locale_can()
    try:
        group(prog_name="eroica")
    except EroicaError as error:
        from eroica.cli.output import say_error
        from eroica.report.words import line

        say_error(line(f"eroica: {error}"))  # it may quote names from the job
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        from eroica.cli.output import forget_output, say_error

        forget_output()
        say_error(f"eroica: {error.filename or 'standard output'} cannot be written: {error.strerror}")
        sys.exit(1)

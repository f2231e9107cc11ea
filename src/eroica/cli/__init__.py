"""The command `eroica`: a file for each command or a few that belong together, imported only when one is called."""

from __future__ import annotations

import errno
import importlib
import io
import sys
from importlib.metadata import EntryPoint, entry_points

import click

from eroica import __version__
from eroica.errors import EroicaError, UnavailableError, UsageError

_COMMANDS = {
    "run": "Run a training command and watch it.",
    "profile": "Open a window on a running job now.",
    "top": "Watch a job that was started elsewhere, live in this terminal.",
    "status": "Show the jobs that are being watched.",
    "live": "Print the link to a running job's live page.",
    "diagnose": "Say what is wrong in profiler traces or Flight Recorder dumps.",
    "report": "Show a saved verdict again, without the traces.",
    "diff": "Say which functions got slower between two runs.",
    "mcp": "Answer an AI assistant's questions about jobs.",
    "demo": "Watch a small real training job get slow and be diagnosed.",
    "sample": "Sample hardware channels into a directory.",
    "settings": "List every setting with its default and source.",
}
#: Commands that share a file with another one.
_FILES = {"live": "status", "profile": "status"}
#: Packages of the family enter their commands here; these come with which package, and which extra.
_GROUP = "eroica.commands"
_ELSEWHERE = {
    "serve": ("eroica-fleet", "fleet"),
    "fleet": ("eroica-fleet", "fleet"),
    "steer": ("eroica-c4d", "c4d"),
    "ways": ("eroica-c4d", "c4d"),
}


class _Commands(click.Group):
    """Looks commands up by name and imports them late: `eroica run` must start quickly."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order in which a newcomer needs them, those of other packages last."""
        return [*_COMMANDS, *(entry.name for entry in _entries())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, None if there is none of this name.

        Raises:
            UnavailableError: It comes with a package that is not installed.
        """
        if cmd_name in _COMMANDS:
            command = getattr(importlib.import_module(f"eroica.cli.{_FILES.get(cmd_name, cmd_name)}"), cmd_name)
        elif entry := next((entry for entry in _entries() if entry.name == cmd_name), None):
            command = entry.load()
        elif cmd_name in _ELSEWHERE:
            package, extra = _ELSEWHERE[cmd_name]
            raise UnavailableError(f"`eroica {cmd_name}` comes with {package}: pip install 'eroica[{extra}]'")
        else:
            return None
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
        """One line per command; only those of other packages are imported."""
        others = [(entry.name, entry.load().get_short_help_str(80)) for entry in _entries()]
        with formatter.section("Commands"):
            formatter.write_dl([*_COMMANDS.items(), *others])


def _entries() -> list[EntryPoint]:
    """Commands of other packages, by name."""
    return sorted(entry_points(group=_GROUP), key=lambda entry: entry.name)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="eroica")
def group() -> None:
    """Eroica names the function, the workers and the resource that make a PyTorch training job slow.

    Start with:  eroica run -- torchrun --nproc-per-node 8 train.py
    """


def main() -> None:
    """Entry point: errors raised on purpose become one line and an exit status."""
    for stream in (sys.stdout, sys.stderr):  # not every locale has all characters
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        group(prog_name="eroica")
    except EroicaError as error:
        from eroica.cli.output import say_error
        from eroica.model.words import line

        say_error(line(f"eroica: {error}"))  # it may quote names from the job
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        from eroica.cli.output import forget_output, say_error

        forget_output()
        say_error(f"eroica: {error.filename or 'standard output'} cannot be written: {error.strerror}")
        sys.exit(1)

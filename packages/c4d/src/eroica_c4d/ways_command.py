"""`eroica ways`: how long a byte waits from host to host in a job that is watched, or was."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
from eroica.cli.output import make_console
from eroica.errors import InputError
from eroica.model.words import clean
from eroica.wire.places import read_private
from rich.table import Table
from rich.text import Text

from eroica_c4d.records import DelayMatrix
from eroica_c4d.watch import MATRIX_FILE

_MOST_BYTES = 2_000_000
#: A cell stands out if its bytes wait so many times as long as usual, or as in the median cell where that is not known.
_STANDS_OUT = 2.5


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
def ways(run: Path) -> None:
    """Show the delays between the hosts of RUN, a run directory, in its last seconds (EROICA_C4D=true)."""
    try:
        matrix = msgspec.json.decode(read_private(run / MATRIX_FILE, _MOST_BYTES), type=DelayMatrix)
    except OSError as error:
        raise InputError(f"{run / MATRIX_FILE} cannot be read: {error.strerror}; was EROICA_C4D=true set?") from error
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InputError(f"{run / MATRIX_FILE} is no matrix: {error}") from error
    make_console().print(table(matrix))


def table(matrix: DelayMatrix) -> Table:
    """Return the matrix in milliseconds, sender by receiver; what stands out is bold, with what is usual."""
    known = sorted(delay for row in matrix.delay_s for delay in row if delay is not None)
    middle = known[len(known) // 2] if known else 0.0
    shown = Table(title="How long a byte waits, ms", title_justify="left")
    shown.add_column("from \\ to")
    for host in matrix.hosts:
        shown.add_column(Text(clean(host)), justify="right")
    for i, host in enumerate(matrix.hosts):
        cells = [Text(clean(host))]
        for j, delay in enumerate(matrix.delay_s[i]):
            usual = matrix.usual_s[i][j] if matrix.usual_s else None
            text = Text("" if delay is None else f"{delay * 1000:.1f}")
            if delay is not None and delay > _STANDS_OUT * (middle if usual is None else usual):
                text.stylize("bold")
                text.append("" if usual is None else f" ({usual * 1000:.1f})")
            cells.append(text)
        shown.add_row(*cells)
    return shown

"""Commands that packages of the family bring: there with the package, and named without it."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import click
import pytest
from click.testing import CliRunner

from eroica import cli
from eroica.errors import UnavailableError


@click.command()
def extra() -> None:
    """Say hello."""
    click.echo("hello")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("extra", f"{__name__}:extra", "eroica.commands")
    monkeypatch.setattr(cli, "entry_points", lambda group: [entry])


@pytest.mark.usefixtures("installed")
def test_a_command_of_another_package_is_listed_and_runs() -> None:
    assert "extra     Say hello." in CliRunner().invoke(cli.group, ["--help"]).output
    assert CliRunner().invoke(cli.group, ["extra"]).output == "hello\n"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("name", "extra"), [("serve", "fleet"), ("fleet", "fleet"), ("steer", "c4d"), ("ways", "c4d")])
def test_without_its_package_a_command_says_how_to_get_it(name: str, extra: str) -> None:
    refused = CliRunner().invoke(cli.group, [name]).exception
    assert isinstance(refused, UnavailableError)
    assert str(refused) == f"`eroica {name}` comes with eroica-{extra}: pip install 'eroica[{extra}]'"


@pytest.mark.usefixtures("installed")
def test_no_other_command_looks_for_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "entry_points", lambda group: pytest.fail("it looked"))
    assert cli.group.get_command(click.Context(cli.group), "run") is not None

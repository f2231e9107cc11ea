"""The `verici` command. What a check does not need is imported where it is used: it must start fast."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from verici.check import TOO_LITTLE, Report, check, load_baseline, save_baseline, state_of_commit, state_of_index
from verici.errors import NotEnoughHistory, VeriCIError
from verici.explain import constraint_words, evidence_words, fingerprint
from verici.history import PATTERNS, Files, Repository
from verici.hook import install, pushed_tips, remove
from verici.labels import load, match, read_export, save
from verici.model import FAIL, PASS, Label
from verici.report import FORMATS, as_github, as_text
from verici.store import Model, load_model, save_model

_MODEL, _BASELINE, _LABELS = Path(".verici/model.json"), Path(".verici/baseline.json"), "labels.csv"
_FORMATS = click.Choice(["text", "json", "sarif", "github", "junit"])
_PATH = click.Path(path_type=Path)
_FOLDER = click.Path(path_type=Path, exists=True, file_okay=False)


class _Main(click.Group):
    """Errors of this package end a command with one line; wrong arguments have status 2."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except VeriCIError as error:
            click.echo(f"verici: {error}", err=True)
            ctx.exit(error.status)
        except KeyboardInterrupt:
            click.echo("verici: interrupted", err=True)
            ctx.exit(130)


@click.group(cls=_Main)
@click.version_option(package_name="verici")
def main() -> None:
    """Learn from build history what a repository's configuration must satisfy, and check commits against it."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _options(*options: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def add(command: Callable[..., None]) -> Callable[..., None]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


_repo = click.option("--repo", type=_PATH, default=Path(), help="A path in the repository.")
_model = click.option("--model", type=_PATH, help="Model file instead of the repository's own.")
_read = _options(
    _repo, _model,
    click.option("--commits", "most", default=400, show_default=True, help="Commits that are read at most."),
    click.option("--only-known-kinds", is_flag=True, help="Leave failures of unknown kind out."),
    click.option("--unlabelled", type=click.Choice(["skip", "pass"]), default="skip", show_default=True),
    click.option("--file", "patterns", multiple=True, help="Further files to read: a glob. May be repeated."),
    click.option("--without", multiple=True, help="Files to leave out: a glob. May be repeated."),
)  # fmt: skip


def _model_path(repository: Repository, given: Path | None) -> Path:
    kept = repository.root / _MODEL
    return given or (kept if kept.exists() else repository.state / "model.json")


class _Read:
    """A history with its labels, as the options of a command ask for it."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.repository = Repository(options["repo"])
        self.model = _model_path(self.repository, options["model"])
        self.files = Files((*PATTERNS, *options["patterns"]), options["without"])
        self.history = self.repository.read("HEAD", options["most"], self.files)
        kept = load(self.repository.state / _LABELS)
        ids = [commit.id for commit in self.history.commits]
        self.labels, unmatched = match(kept, ids, known_kinds=options["only_known_kinds"])
        if options["unlabelled"] == "pass":
            self.labels = {commit: self.labels.get(commit) or Label(commit, PASS) for commit in ids}
        self.failed = {commit: label.result == FAIL for commit, label in self.labels.items()}
        for note in self.history.notes:
            click.echo(f"verici: {note}", err=True)
        if unmatched:
            why = "name no commit of this history (force-pushed, squashed, or older than the commits read)"
            click.echo(f"verici: {unmatched} of {len(kept)} labels {why}", err=True)


@main.command()
@_read
def learn(**options: Any) -> None:
    """Learn constraints from the labelled history and keep them."""
    from verici.learner import learn

    read = _Read(options)
    found = learn(read.history, read.failed, read.files)
    save_model(read.model, found)
    _say_learned(found, read.model, "builds")
    unknown = sum(label.kind == "unknown" for label in read.labels.values())
    if unknown:
        click.echo(f"{unknown} labels are failures of unknown kind: some may be failed tests (--only-known-kinds)")


def _say_learned(found: Model, path: Path, what: str) -> None:
    click.echo(
        f"{found.builds} {what}, {found.failed} failed ({found.relabelled} not explained by constants); "
        f"learner {found.learner}; {len(found.constraints)} constraints in {path}"
    )
    for constraint in found.constraints:
        click.echo(f"  {constraint_words(constraint)}")


@main.command()
@_options(_repo, _model)
def explain(repo: Path, model: Path | None) -> None:
    """Print the learned constraints and the builds that taught each one."""
    found = _learned(_model_path(Repository(repo), model))
    click.echo(f"{found.builds} builds, {found.failed} failed; learner {found.learner}")
    for constraint in found.constraints:
        weak = " (weak: few builds)" if constraint.weak else ""
        click.echo(f"{fingerprint(constraint)}{weak}\n  {constraint_words(constraint)}\n  {evidence_words(constraint)}")


def _learned(path: Path) -> Model:
    found = load_model(path)
    if found is None:
        raise NotEnoughHistory(f"there is no model {path} yet; learn first")
    return found


@main.command("check")
@click.argument("commit", default="HEAD")
@_options(_repo, _model)
@click.option("--staged", is_flag=True, help="Check the index instead of a commit.")
@click.option("--format", "form", type=_FORMATS, default="text", show_default=True)
@click.option("--baseline", type=_PATH, help=f"Known findings; {_BASELINE} if it exists.")
@click.option("--write-baseline", is_flag=True, help="Keep the present findings as known.")
@click.option("--quiet-unless-trusted", is_flag=True, help="Print no message that the filter does not trust.")
@click.option("--strict", is_flag=True, help="Exit with 1 if the check itself fails; else a warning and status 0.")
@click.pass_context
def check_(ctx: click.Context, /, repo: Path, strict: bool, **options: Any) -> None:
    """Predict whether COMMIT's build fails: status 0 pass, 3 predicted failure, 4 not enough history."""
    repository = Repository(repo)
    if not options["staged"]:
        repository.resolve(options["commit"])  # a wrong name is the caller's error, not a failed check
    try:
        report = _check(repository, options)
        _print(report.trusted() if options["quiet_unless_trusted"] else report, options["form"])
    except Exception as error:  # noqa: BLE001 (a failed check must not stop a push)
        _say_crash(error)
        ctx.exit(1 if strict else 0)
    ctx.exit(report.status)


def _say_crash(error: Exception) -> None:
    click.echo(f"verici: the check itself failed, nothing is predicted: {type(error).__name__}: {error}", err=True)


def _check(repository: Repository, options: Mapping[str, Any]) -> Report:
    model = load_model(_model_path(repository, options.get("model")))
    name = "the index" if options["staged"] else repository.resolve(options["commit"])
    if model is None:
        return Report(name, TOO_LITTLE, ())
    baseline = options.get("baseline") or repository.root / _BASELINE
    if options["staged"]:
        index = os.environ.get("GIT_INDEX_FILE")
        state = state_of_index(repository, model, repository.root / index if index else None)
    else:
        state = state_of_commit(repository, name, model)
    if options.get("write_baseline"):
        report = check(state, model, name, (), repository.notes)
        save_baseline(baseline, report.findings)
        click.echo(f"verici: {len(report.findings)} findings are known from now on, in {baseline}", err=True)
    return check(state, model, name, load_baseline(baseline), repository.notes)


def _print(report: Report, form: str) -> None:
    text = FORMATS[form](report)
    if text:
        click.echo(text)
    if form == "text" and os.environ.get("GITHUB_ACTIONS") == "true" and report.findings:
        click.echo(as_github(report))


@main.command()
@click.argument("action", type=click.Choice(["install", "remove", "run"]))
@click.argument("name", type=click.Choice(["pre-push", "pre-commit"]), default="pre-push")
@click.argument("git_arguments", nargs=-1, type=click.UNPROCESSED)  # a hook may pass on what git gives it
@_repo
@click.pass_context
def hook(ctx: click.Context, /, action: str, name: str, repo: Path, **_: object) -> None:
    """Install or remove a git hook that checks pushed tips (pre-push) or the index (pre-commit); git runs it."""
    if action != "run":
        path = (install if action == "install" else remove)(Repository(repo), name)
        click.echo(f"{'wrote' if action == 'install' else 'removed'} {path}")
        return
    try:
        refused = _run_hook(name, Repository(repo))
    except Exception as error:  # noqa: BLE001 (a hook never blocks on its own error)
        _say_crash(error)
    else:
        ctx.exit(int(refused))


def _run_hook(name: str, repository: Repository) -> bool:
    """Print predicted failures; return True if there are any."""
    staged = name == "pre-commit"
    tips = [""] if staged else pushed_tips(sys.stdin)
    reports = [_check(repository, {"staged": staged, "commit": tip}) for tip in tips]
    bad = [report for report in reports if report.findings]
    for report in bad:
        click.echo(as_text(report), err=True)
    if bad:
        click.echo("verici: to go on all the same: --no-verify; for one line: a comment `verici: ignore`", err=True)
    return bool(bad)


@main.command("import")
@click.argument("service", type=click.Choice(["github", "gitlab", "jenkins", "buildkite", "travis", "csv"]))
@click.argument("export", type=_PATH)
@click.option("--jobs", type=_FOLDER, help="Folder with ID.json: the jobs of each run.")
@_repo
def import_(service: str, export: Path, jobs: Path | None, repo: Path) -> None:
    """Read build results from a service's EXPORT into the repository's label table."""
    found = read_export(export, service, jobs)
    path = Repository(repo).state / _LABELS
    _keep(path, found)
    counts = {kind: sum(label.kind == kind for label in found) for kind in ("ok", "test", "config", "unknown")}
    click.echo(f"{len(found)} labels ({', '.join(f'{count} {kind}' for kind, count in counts.items())}) in {path}")


def _keep(path: Path, found: list[Label]) -> None:
    save(path, {**load(path), **{label.commit: label for label in found}}.values())


@main.command()
@click.option("--command", required=True, help="Shell command; its failure is a configuration error.")
@click.option("--test", "tests", default="", help="Run after it; its failure counts as a pass.")
@click.option("--commits", "span", default="HEAD", show_default=True, help="A..B, or one commit.")
@click.option("--seconds", default=600.0, show_default=True, help="Time limit of a command.")
@click.option("--memory", default=4096, show_default=True, help="MiB.")
@click.option("--disk", default=4096, show_default=True, help="MiB.")
@click.option("--processes", default=512, show_default=True)
@click.option("--network", is_flag=True, help="Let commands use the network.")
@click.option("--no-sandbox", is_flag=True, help="Build without namespaces: only for commits that you trust.")
@click.option("--env", multiple=True, help="Variable that is passed on. May be repeated.")
@_repo
def label(repo: Path, span: str, **options: Any) -> None:
    """Build commits in worktrees of their own and keep the results as labels."""
    from verici.building import Plan, commits_between, label_commits
    from verici.sandbox import Limits

    repository = Repository(repo)
    limits = Limits(options["seconds"], options["memory"] << 20, options["processes"], options["disk"] << 20)
    sandbox, network = not options["no_sandbox"], options["network"]
    plan = Plan(options["command"], options["tests"], limits, sandbox, network, options["env"])
    built = {name for name, one in load(repository.state / _LABELS).items() if one.source == "build"}

    def done(found: Label) -> None:
        _keep(repository.state / _LABELS, [found])
        click.echo(f"{found.commit[:7]} {found.result} {found.kind}: {found.detail}")

    label_commits(repository, [one for one in commits_between(repository, span) if one not in built], plan, done)


@main.command()
@_read
@click.option("--html", type=_PATH, help="Write one page: timeline, constraints, what they would have caught.")
def history(html: Path | None, **options: Any) -> None:
    """Print the builds in order, or write them as a page."""
    from verici.page import text_timeline, write_page

    read = _Read(options)
    shown = (read.history, read.labels, load_model(read.model))
    if html:
        write_page(html, *shown)
    click.echo(f"wrote {html}" if html else text_timeline(*shown))


@main.command("eval")
@_read
@click.option("--json", "as_json", is_flag=True, help="For programs.")
@click.option("--beside", default="", help="Linters by name, comma-separated: actionlint, zizmor, yamllint.")
def evaluate(as_json: bool, beside: str, **options: Any) -> None:
    """Measure predictions on the repository's own history, walk-forward, with baselines beside them."""
    read = _Read(options)
    if beside:
        from verici.beside import compare, table

        rows = compare(read.repository, _learned(read.model), [name.strip() for name in beside.split(",")])
        click.echo(msgspec.json.encode(rows).decode() if as_json else table(rows))
    else:
        from verici.evaluate import evaluate, table_of

        scores = evaluate(read.history, read.failed)
        click.echo(msgspec.json.encode(scores).decode() if as_json else table_of(scores))


_preflight_model = click.option("--model", type=_PATH, default=Path("preflight.json"), show_default=True)


@main.group()
def preflight() -> None:
    """Check launch files of training jobs: the same learner over a folder of past jobs."""


@preflight.command("learn")
@click.argument("folder", type=_FOLDER)
@click.option("--labels", type=_PATH, help="Table with job and exit_code; else verdict.json or exit_code in each job.")
@_preflight_model
def preflight_learn(folder: Path, labels: Path | None, model: Path) -> None:
    """Learn from FOLDER: one subfolder or file for each past job."""
    from verici.launch import learn_jobs

    found = learn_jobs(folder, labels)
    save_model(model, found)
    _say_learned(found, model, "jobs")


@preflight.command("check")
@click.argument("job", type=click.Path(path_type=Path, exists=True))
@_preflight_model
@click.option("--format", "form", type=_FORMATS, default="text", show_default=True)
@click.pass_context
def preflight_check(ctx: click.Context, /, job: Path, model: Path, form: str) -> None:
    """Predict whether JOB, a folder or one launch file, fails before its first iteration."""
    from verici.launch import check_job

    report = check_job(job, _learned(model))
    _print(report, form)
    ctx.exit(report.status)

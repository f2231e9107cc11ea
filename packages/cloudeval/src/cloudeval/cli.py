"""The command line. Exit statuses: 0 right or done, 1 wrong, 2 wrong usage, 3 could not be judged."""

import json
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import click
import msgspec

from cloudeval import analyse, campaign, problems, report
from cloudeval.cleaning import clean
from cloudeval.errors import CloudEvalError, UsageError
from cloudeval.judging import judge
from cloudeval.match import Reference
from cloudeval.metrics import measure
from cloudeval.models import Endpoint
from cloudeval.records import RIGHT, UNJUDGED, WRONG, Key, Result
from cloudeval.runners import kubectl

RIGHT_STATUS, WRONG_STATUS, USAGE_STATUS, UNJUDGED_STATUS = 0, 1, 2, 3
_PATH = click.Path(path_type=Path)
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_OUT = Path("cloudeval-results/results.jsonl")


class _Command(click.Command):
    """A command whose errors are one line."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CloudEvalError as error:
            click.echo(f"cloudeval: {error}", err=True)
            ctx.exit(USAGE_STATUS)


class _Group(click.Group):
    command_class = _Command


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(package_name="cloudeval")
def main() -> None:
    """Test generated cloud configuration by running it."""


_only = click.option("--only", default="", help="Comma-separated parts of ids, or groups.")
_seed = click.option("--seed", default=0, help="Seed of the problems' variables.")
_workers = click.option("--workers", default=1, help="Tests at once.")
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
_files = click.argument("files", nargs=-1, required=True, type=_FILE)


@main.command()
@click.option("--problems", "folder", type=_FOLDER, help="Folder of problems; the package's own by default.")
@_only
@click.option("--styles", default="full,terse,chinese", help="Question styles.")
@click.option("--samples", "-k", default=1, help="Answers per question.")
@_seed
@click.option("--base-url", help="OpenAI-compatible endpoint, up to and without /chat/completions.")
@click.option("--model", help="Name of the model.")
@click.option("--answers", type=click.Path(exists=True, path_type=Path), help="Folder or JSON-lines file of answers.")
@click.option("--own", type=click.Choice(["references", "mutants"]), help="Test the problems' own texts instead.")
@click.option("--name", help="Name of the source in the results; the model's or the file's by default.")
@click.option("--out", type=_PATH, default=_OUT, help="Results file.")
@_workers
@click.option("--ray", "ray_address", help='Test on a Ray cluster: its address, or "local".')
@click.option("--concurrency", default=8, help="Requests at once.")
@click.option("--retries", default=3, help="Further tries of a failed request.")
@click.option("--temperature", type=float, help="Passed to the endpoint.")
@click.option("--max-tokens", type=int, help="Passed to the endpoint.")
@click.option("--prices", type=(float, float), default=(0.0, 0.0), help="Dollars per million prompt and answer tokens.")
@click.option("--no-cache", is_flag=True, help="Ask again even where an answer is kept.")
def run(out: Path, workers: int, ray_address: str | None, **options: Any) -> None:
    """Collect answers, test them, and append the results to a file. Goes on where it was stopped."""
    results = campaign.ResultsFile(out)
    given = _answers(problems.load(options["folder"], options["only"]), options, {item.key for item in results.results})

    def show_result(result: Result) -> None:
        verdict, place = result.verdict, f"{result.problem} ({result.style}, {result.sample})"
        click.echo(f"{verdict.outcome:8} {place} {verdict.how}: {verdict.reason or 'passes'}"[:200])

    try:
        found = campaign.run_answers(given, results, workers=workers, ray_address=ray_address, on_result=show_result)
    except KeyboardInterrupt:
        click.echo(f"stopped; {len(results.results)} results are kept in {out}, the same command goes on", err=True)
        sys.exit(130)
    finally:
        results.close()
    click.echo("\n" + report.table(analyse.summarize(found)))
    if all(result.verdict.outcome == UNJUDGED for result in found):
        sys.exit(UNJUDGED_STATUS)


def _answers(loaded: list[problems.Problem], options: dict[str, Any], known: set[Key]) -> list[campaign.Given]:
    chosen = [name for name in ("base_url", "answers", "own") if options[name]]
    if len(chosen) != 1 or bool(options["base_url"]) != bool(options["model"]):
        raise UsageError("give one source of answers: --base-url with --model, --answers, or --own")
    source = options["name"] or options["model"] or options["own"] or options["answers"].stem
    styles = [style for style in options["styles"].split(",") if style]
    if unknown := set(styles) - set(problems.STYLES):
        raise UsageError(f"no style {', '.join(unknown)}; there are {', '.join(problems.STYLES)}")
    wanted = campaign.plans(loaded, source, styles, options["samples"], options["seed"])
    wanted = [plan for plan in wanted if plan.key not in known]
    if options["own"]:
        return campaign.from_problems(wanted, options["own"].removesuffix("s"))
    if options["answers"]:
        return campaign.from_files(wanted, options["answers"])
    extra = {key: options[key] for key in ("temperature", "max_tokens") if options[key] is not None}
    settings = {key: options[key] for key in ("base_url", "model", "concurrency", "retries", "prices")}
    return campaign.from_endpoint(wanted, Endpoint(**settings, options=extra, cache=not options["no_cache"]))


def _results(files: tuple[Path, ...]) -> list[Result]:
    if not (results := [result for file in files for result in campaign.read_results(file)]):
        raise UsageError("the files hold no results")
    return results


@main.command()
@_files
@_json
@click.option("--report", "reports", multiple=True, type=_PATH, help="Write .html, .xml (JUnit) or .json; repeatable.")
def score(files: tuple[Path, ...], as_json: bool, reports: tuple[Path, ...]) -> None:
    """Summarize results files."""
    results = _results(files)
    for path in reports:
        report.write(path, results)
    summaries = analyse.summarize(results)
    click.echo(report.to_json(summaries) if as_json else report.table(summaries))


@main.command()
@click.argument("file", type=_FILE)
@click.option("--problem", default="", help="Only problems with this in their id.")
@click.option("--outcome", type=click.Choice([RIGHT, WRONG, UNJUDGED]), help="Only results with this outcome.")
@click.option("--answers", "with_answers", is_flag=True, help="Print the answers, too.")
def show(file: Path, problem: str, outcome: str | None, with_answers: bool) -> None:
    """Show single results with their reasons."""
    for result in campaign.read_results(file):
        verdict = result.verdict
        if problem in result.problem and outcome in (None, verdict.outcome):
            place = f"{result.problem} {result.style} #{result.sample} {result.source}"
            metrics = f"class {result.answer_class}, wildcard {result.metrics['kv_wildcard']:.2f}"
            reason = [f"    {verdict.reason}"] if verdict.reason else []
            answer = [f"    | {line}" for line in result.answer.splitlines()] if with_answers else []
            click.echo("\n".join([f"{place}: {verdict.outcome} by {verdict.how}, {metrics}", *reason, *answer]))


@main.command()
@_files
@click.option("--between", nargs=2, help="Names of two sources; the first two by default.")
def compare(files: tuple[Path, ...], between: tuple[str, str] | None) -> None:
    """Compare two sources answer by answer. Prints JSON."""
    results = _results(files)
    known = sorted({result.source for result in results})
    names = list(between or known[:2])
    if len(names) != 2 or not set(names) <= set(known):
        raise UsageError(f"needs two sources; the files hold {', '.join(known)}")
    click.echo(json.dumps(analyse.compare(results, *names), indent=2, ensure_ascii=False))


@main.command()
@click.argument("folder", type=_PATH)
def new(folder: Path) -> None:
    """Make the folder of a new problem, with everything to fill in, and say how to test it."""
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} exists and is not empty")
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("problem.yaml", "check.py", "mutants.yaml"):
        text = (resources.files("cloudeval") / "skeleton" / name.replace(".py", ".txt")).read_text()
        (folder / name).write_text(text.replace("PROBLEM_ID", folder.name))
    click.echo(f"made {folder}; edit its three files, then run: cloudeval validate {folder}")


@main.command()
@click.argument("folder", type=_FOLDER, required=False)
@_only
@_seed
@_workers
def validate(folder: Path | None, only: str, seed: int, workers: int) -> None:
    """Check problems themselves: references and alternatives must pass, every mutant must fail."""
    from cloudeval.strength import validate_problems

    found = validate_problems(problems.load(folder, only), seed, workers)
    click.echo("\n".join([*found.exceptions, found.table()]))
    sys.exit(UNJUDGED_STATUS if found.unjudged else WRONG_STATUS if found.exceptions else RIGHT_STATUS)


@main.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--against", required=True, help="A problem's folder, or the id of one of the package's own.")
@_seed
@click.option("--cluster", is_flag=True, help="Judge in the cluster of KUBECONFIG instead of a sandbox.")
@_json
@click.option("--junit", "junit_file", type=_PATH, help="Write JUnit XML.")
@click.option("--github", is_flag=True, help="Print GitHub annotations.")
@click.option("--clean/--no-clean", "cleaning", default=False, help="Clean the file as a model's answer first.")
def check(
    file: str,
    against: str,
    seed: int,
    cluster: bool,
    as_json: bool,
    junit_file: Path | None,
    github: bool,
    cleaning: bool,
) -> None:
    """Test one manifest or configuration by behaviour. Exits with 0 (right), 1 (wrong) or 3 (could not be judged)."""
    text = sys.stdin.read() if file == "-" else Path(file).read_text()
    variant = problems.draw(problems.find(against), seed)
    if cleaning:
        text = clean(text, variant.runner)[0]
    verdict = kubectl.judge(variant, text) if cluster else judge(variant, text)
    if as_json:
        metrics = measure(Reference.parse(variant.reference), text)
        record = {"file": file, "problem": variant.id, **msgspec.to_builtins(verdict), "metrics": metrics}
        click.echo(json.dumps(record, ensure_ascii=False))
    else:
        reason = f": {verdict.reason}" if verdict.reason else ""
        click.echo(f"{file}: {verdict.outcome} by {verdict.how}{reason} ({verdict.seconds:.1f} s)")
        for fault in verdict.faults[1:]:
            click.echo(f"    {fault}")
    if junit_file:
        junit_file.write_text(report.verdict_junit(file, verdict))
    if github and (line := report.annotation(file, verdict)):
        click.echo(line)
    sys.exit({RIGHT: RIGHT_STATUS, WRONG: WRONG_STATUS}.get(verdict.outcome, UNJUDGED_STATUS))


@main.command("list")
@click.option("--problems", "folder", type=_FOLDER)
@_only
def list_problems(folder: Path | None, only: str) -> None:
    """List problems: id, group, title, runner."""
    for problem in problems.load(folder, only):
        click.echo(f"{problem.id:28} {problem.group:12} {problem.runner:10} {problem.title}")


if __name__ == "__main__":
    main()

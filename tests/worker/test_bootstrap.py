"""What a Python of a watched job notices of us before it imports torch: nothing."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from eroica.worker import bootstrap_directory

USERS_OWN = "import sys\nsys.users_own = __name__\n"


def python(
    code: str, *path: Path, options: tuple[str, ...] = (), executable: str = sys.executable, **variables: str
) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("EROICA_", "PYTHON"))}
    environment["PYTHONPATH"] = os.pathsep.join(str(place) for place in path)
    return subprocess.run(
        [executable, *options, "-c", code],
        env={**environment, **variables}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def users_sitecustomize(place: Path, text: str = USERS_OWN) -> Path:
    (place / "sitecustomize.py").write_text(text)
    return place


LOOKING = "import sys; print(any(type(f).__name__ == '_Lookout' for f in sys.meta_path))"


def test_it_looks_out_for_torch_and_imports_nothing_third_party_nor_typing() -> None:
    plain = python("import sys; print(sorted(sys.modules))")
    ours = python("import sys; print(sorted(sys.modules))", bootstrap_directory())
    added = set(eval(ours.stdout)) - set(eval(plain.stdout))
    assert added <= {
        "__future__", "eroica", "eroica.errors", "eroica.worker", "eroica.worker.import_watch", "sitecustomize"
    }  # fmt: skip
    assert python(LOOKING, bootstrap_directory()).stdout == "True\n"
    assert ours.stderr == ""


def test_the_users_own_sitecustomize_still_runs_as_if_ours_were_not_there(tmp_path: Path) -> None:
    users_sitecustomize(tmp_path)
    code = (
        "import sys, sitecustomize; print(sys.users_own, sitecustomize.__file__, sys.path[1] == sys.argv[0]);"
        "print([p for p in sys.path if 'bootstrap' in p])"
    )
    ours = python(code, bootstrap_directory(), tmp_path)
    plain = python(code, tmp_path)
    assert ours.stdout == plain.stdout
    assert ours.stdout.startswith(f"sitecustomize {tmp_path}")
    assert ours.stderr == ""
    assert python(LOOKING, bootstrap_directory(), tmp_path).stdout == "True\n"


@pytest.mark.parametrize("text", ["raise ValueError('mine')", "import no_such_module"])
def test_what_the_users_sitecustomize_raises_looks_as_always(tmp_path: Path, text: str) -> None:
    users_sitecustomize(tmp_path, text)
    ours = python("print('on')", bootstrap_directory(), tmp_path)
    plain = python("print('on')", tmp_path)
    assert (ours.returncode, ours.stdout, ours.stderr) == (plain.returncode, plain.stdout, plain.stderr)


def test_it_does_nothing_where_it_is_disabled() -> None:
    assert python(LOOKING, bootstrap_directory(), EROICA_DISABLE="1").stdout == "False\n"


def test_it_does_nothing_in_a_python_without_eroica() -> None:
    without = getattr(sys, "_base_executable", sys.executable)
    if without == sys.executable:
        pytest.skip("no Python without Eroica here")
    ran = python(LOOKING, bootstrap_directory(), executable=without)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "False\n", "")


def test_it_costs_less_than_five_milliseconds() -> None:
    """Cheapest of several starts: other load on the machine is not ours."""
    costs = []
    for _ in range(15):
        ran = python("pass", bootstrap_directory(), options=("-X", "importtime"))
        *_, line = [line for line in ran.stderr.splitlines() if re.search(r"\| *sitecustomize$", line)]
        costs.append(int(line.split("|")[1]) / 1000)
    assert min(costs) < 5.0


def test_torch_gets_its_hooks_whether_it_comes_before_or_after() -> None:
    code = (
        "import torch; import torch.utils.data.dataloader as d, torch.optim.optimizer as o;"
        "iterator = d._BaseDataLoaderIter;"
        "print(len(o._global_optimizer_post_hooks), iterator.__dict__['_num_yielded'].__class__.__module__,"
        " iterator.__next__.__code__.co_filename[-13:])"
    )
    expected = "1 eroica.worker.attach dataloader.py\n"
    assert python(code, bootstrap_directory()).stdout == expected
    assert python("import eroica.auto;" + code).stdout == expected
    assert python("import torch, eroica.auto;" + code).stdout == expected


def test_kinetos_log_is_silenced_with_the_first_hook_unless_the_user_wants_it() -> None:
    code = (
        "import os; from eroica.worker.attach import Attachment; before = os.environ.get('KINETO_LOG_LEVEL');"
        "Attachment().settle(); print(before, os.environ['KINETO_LOG_LEVEL'])"
    )
    assert python(code).stdout == "None 99\n"
    assert python(code, KINETO_LOG_LEVEL="1").stdout == "1 1\n"


def test_detaching_leaves_torch_as_it_was() -> None:
    code = (
        "import torch.utils.data.dataloader as d, torch.optim.optimizer as o, torch.autograd.profiler as p, sys;"
        "before = (set(vars(d._BaseDataLoaderIter)), p._prepare_profiler, p._enable_profiler, p._disable_profiler);"
        "import eroica, eroica.worker.attach;\n"
        "with eroica.watch():\n    inside = set(vars(d._BaseDataLoaderIter)) == before[0]\n"
        "after = (set(vars(d._BaseDataLoaderIter)), p._prepare_profiler, p._enable_profiler, p._disable_profiler)\n"
        "print(inside, before == after, len(o._global_optimizer_post_hooks),"
        " any('Lookout' in type(f).__name__ for f in sys.meta_path))"
    )
    assert python(code).stdout == "False True 0 False\n"


def test_watch_refuses_settings_that_do_not_exist_and_hands_on_those_that_do() -> None:
    refused = python("import eroica; eroica.watch(slowdwon=1)")
    assert "UsageError: unknown setting 'slowdwon'" in refused.stderr
    given = python(
        "import eroica, os; eroica.watch(expected_iteration_s=1.5); print(os.environ['EROICA_EXPECTED_ITERATION_S'])"
    )
    assert given.stdout == "1.5\n"


def test_an_impossible_value_is_refused_and_leaves_nothing_behind() -> None:
    refused = python(
        "import eroica, os\n"
        "try: eroica.watch(window_s=5, sampler='inisde')\n"
        "except eroica.EroicaError as error: print(error, [n for n in os.environ if n.startswith('EROICA_')])"
    )
    assert refused.stdout == ("setting sampler cannot be 'inisde'; it wants one of auto, outside, inside, none []\n"), (
        refused.stderr
    )


def test_the_end_of_watching_gives_the_environment_back(tmp_path: Path) -> None:
    code = (
        "import eroica, os; before = dict(os.environ)\n"
        "with eroica.watch(window_s=4, cooldown_s=9, slowdown=0.5):\n"
        "    inside = dict(os.environ); os.environ['EROICA_SLOWDOWN'] = '0.7'\n"
        "after = dict(os.environ); changed = after.pop('EROICA_SLOWDOWN')\n"
        "print(inside['EROICA_WINDOW_S'], inside['EROICA_COOLDOWN_S'], before == after, changed)"
    )
    assert python(code, EROICA_COOLDOWN_S="60", KINETO_LOG_LEVEL="1").stdout == "4 9 True 0.7\n"


def test_settings_that_come_too_late_are_named(tmp_path: Path) -> None:
    code = (
        "import eroica; w = eroica.watch(expected_iteration_s=1.5, window_s=7, page_hosts='', cooldown_s=None);"
        "print(w.unheeded)"
    )
    here = {"EROICA_RUN_DIR": str(tmp_path / "run"), "EROICA_RUNTIME_DIR": str(tmp_path), "EROICA_JOB": "j"}
    assert python(code, **here).stdout == "()\n" and not (tmp_path / "run").exists()
    launched = python(code, **here, EROICA_LAUNCHED="1@here", EROICA_WINDOW_S="7")
    assert launched.stdout == "('expected_iteration_s',)\n", launched.stderr
    (log,) = (tmp_path / "run" / "log").iterdir()
    assert "not heeded: expected_iteration_s: agent and collector were running already" in log.read_text()
    host = {"EROICA_HOST": "a"}
    agents = tmp_path / f"eroica-{os.getuid()}" / "j@a"
    agents.mkdir(parents=True)
    (agents / "run").touch()
    assert python(code, **here, **host).stdout == "('expected_iteration_s', 'window_s')\n"


def test_settings_hold_where_the_training_goes_to_another_directory(tmp_path: Path) -> None:
    (tmp_path / "eroica.toml").write_text("window_s = 6\n")
    (tmp_path / "outputs").mkdir()
    code = (
        f"import os; os.chdir({str(tmp_path)!r}); import eroica.auto; os.chdir('outputs');"
        "from eroica.settings import load_settings; print(load_settings().window_s)"
    )
    assert python(code).stdout == "6.0\n"


def test_auto_never_raises() -> None:
    ran = python("import eroica.auto; print('training')", EROICA_SLOWDOWN="many")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "training\n", "")


def old_pythons() -> list[str]:
    """Pythons of this machine that cannot run Eroica, Python 2 among them where there is one."""
    known = (*Path.home().glob(".pyenv/versions/*/bin/python"), Path("/usr/bin/python2"), Path("/usr/bin/python2.7"))
    places = {path.parent.parent.name: str(path) for path in known if path.exists()}
    return [path for name, path in sorted(places.items()) if re.match(r"2\.|3\.[6-9]\.", name)]


@pytest.mark.parametrize("executable", old_pythons() or [pytest.param("", marks=pytest.mark.skip("no old Python"))])
@pytest.mark.parametrize("users_own", [None, USERS_OWN, "import nothing_there\n", "raise ValueError(5)\n"])
def test_an_old_python_notices_nothing(users_own: str | None, executable: str, tmp_path: Path) -> None:
    paths = (users_sitecustomize(tmp_path, users_own),) if users_own else ()
    code = "import sys; print(getattr(sys, 'users_own', 0))"
    plain = python(code, *paths, executable=executable)
    ours = python(code, bootstrap_directory(), *paths, executable=executable)
    assert (ours.returncode, ours.stderr) == (plain.returncode, plain.stderr)
    assert ours.stdout == plain.stdout


def test_the_bootstrap_is_written_in_what_python_2_can_read() -> None:
    newer = (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.Nonlocal, ast.AsyncFunctionDef, ast.Starred)
    tree = ast.parse((bootstrap_directory() / "sitecustomize.py").read_text())
    for node in ast.walk(tree):
        assert not isinstance(node, newer), ast.dump(node)
        if isinstance(node, ast.FunctionDef):
            said = [argument.annotation for argument in node.args.args]
            assert (node.returns, said, node.args.kwonlyargs) == (None, [None] * len(said), []), node.name

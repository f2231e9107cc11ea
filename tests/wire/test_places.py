"""Where files lie, and to whom they belong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from eroica.wire.places import job_name, places, private_directory


def test_jobs_and_hosts_never_share_a_directory() -> None:
    seen = set()
    for job in ("a", "b"):
        for host in ("h1", "h2"):
            where = places({"EROICA_JOB": job, "EROICA_HOST": host})
            seen |= {where.runtime, where.scratch}
    assert len(seen) == 8


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({"EROICA_JOB": "../../etc/x y"}, "etc-x-y"),
        ({"SLURM_JOB_ID": "77", "MASTER_ADDR": "n0", "MASTER_PORT": "29500"}, "77-n0-29500"),
        ({"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "n0", "MASTER_PORT": "1"}, "n0-1"),
        ({}, f"group-{os.getpgrp()}"),
    ],
)
def test_all_processes_of_a_job_find_the_same_name(environment: dict[str, str], name: str) -> None:
    assert job_name(environment) == name


def test_a_directory_of_ours_is_private_and_a_link_is_refused(tmp_path: Path) -> None:
    made = private_directory(tmp_path / "a" / "b")
    assert made.stat().st_mode & 0o777 == 0o700
    link = tmp_path / "link"
    link.symlink_to(made)
    with pytest.raises(PermissionError, match="link"):
        private_directory(link)


def test_a_directory_that_a_variable_names_is_only_a_root_so_nothing_of_the_users_is_ever_deleted() -> None:
    where = places({"EROICA_SCRATCH_DIR": "/data/me", "EROICA_RUNTIME_DIR": "/data/run", "EROICA_JOB": "j"})
    for path, root in ((where.scratch, "/data/me"), (where.runtime, "/data/run")):
        assert path.parent.parent == Path(root) and path.parent.name.startswith("eroica-")

"""The table of docs/security.md, cell by cell: each thing that somebody cannot do has tests that try it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "security.md"
#: What stands in the cells that name nothing which could be tried, or that only join two clauses.
NO_CLAIM = re.compile(r"[\s,.;:()–]|\b(?:and|or)\b|nothing protects you; see below|keeps the two apart|\ba job of\b")
#: Clause of the last column to the tests that try it, as `folder/file::test`.
CLAIMS = {
    "break the training by what is in Eroica's files: what a worker, an agent or a collector reads is checked": (
        "security/test_containment::test_garbage_among_the_beat_files_leaves_the_workers_watched",
        "security/test_private_files::test_bytes_that_are_no_record_end_in_one_error_that_callers_know",
        "security/test_hostile_peers::test_a_worker_that_writes_into_the_agents_part_of_its_file_gets_its_order_all_the_same",
        "reliability/test_disturbances::test_the_training_does_not_notice",
    ),
    "the memory that a worker shares cannot be cut short (where the kernel seals none, that ends who has it mapped)": (
        "wire/test_sealed::test_who_cuts_the_beat_file_short_ends_nobody",
        "wire/test_sealed::test_without_sealed_memory_the_file_itself_is_shared",
    ),
    "end agent or collector by odd names, ranks, process ids, Flight Recorder dumps or traces: they are refused or "
    "cleaned": (
        "security/test_private_files::test_names_that_are_no_text_can_be_sent_all_the_same",
        "security/test_private_files::test_a_host_name_with_slashes_names_no_other_place",
        "trace/test_flight_recorder::test_hostile_numbers_and_long_names_are_bounded",
        "trace/test_flight_dumps::test_a_dump_damaged_anywhere_is_a_dump_or_an_error",
        "summarize/test_recorded_tables::test_any_table_becomes_a_pattern_that_adds_up_or_is_refused",
    ),
    "Lead a summary to a file outside the window's directory": (
        "summarize/test_summarize_command::test_what_a_capture_names_is_looked_for_beside_it_only",
    ),
    "read or write files (0700, 0600)": (
        "security/test_containment::test_every_file_and_directory_of_a_job_is_its_users_alone_whatever_the_umask",
        "security/test_containment::test_another_user_can_neither_read_nor_change_nor_signal_anything",
    ),
    "read `EROICA_TOKEN`": (
        "security/test_containment::test_another_user_can_neither_read_nor_change_nor_signal_anything",
    ),
    "signal or trace anything": (
        "security/test_containment::test_another_user_can_neither_read_nor_change_nor_signal_anything",
    ),
    "get any request answered but with 401 or 421": (
        "security/test_containment::test_another_user_reaches_the_port_and_gets_no_further",
        "security/test_hostile_peers::test_only_the_whole_token_opens_and_nobody_learns_which_paths_there_are",
    ),
    "fill the collector's memory, descriptors or log": (
        "security/test_strangers::test_a_crowd_takes_neither_descriptors_nor_log_nor_the_agents_place",
        "security/test_containment::test_garbage_at_the_port_leaves_the_job_watched_and_the_log_short",
        "security/test_containment::test_idle_and_slow_strangers_keep_no_agent_out",
    ),
    "put links or files where yours are expected": (
        "security/test_private_files::test_nothing_is_written_to_what_was_planted_and_nothing_read_from_it",
        "security/test_others_links::test_out_through_a_planted_link_writes_nothing_and_the_command_runs",
    ),
    "slip modules or settings into a job that you start in `/tmp`": (
        "cli/test_start::test_modules_of_the_users_path_are_not_ours",
        "security/test_private_files::test_settings_that_a_stranger_left_where_everybody_may_write_do_not_count",
    ),
    "get anything answered without the token": (
        "security/test_hostile_peers::test_whoever_shows_no_token_is_sent_away_and_whoever_did_stays",
        "cli/test_nodes::test_nobody_listens_on_the_network_without_a_token",
    ),
    "Nothing listens on all addresses": (
        "security/test_containment::test_the_collector_of_one_host_listens_on_loopback_only",
        "collector/test_listening_sockets::test_it_listens_on_loopback_until_it_closes",
    ),
    "run code through Eroica": (
        "security/test_planted_words::test_a_pickle_in_the_store_is_a_text_like_any_other",
        "security/test_planted_words::test_no_planted_word_is_run_or_leads_off_the_network",
        "security/test_private_files::test_bytes_that_are_no_record_end_in_one_error_that_callers_know",
    ),
    "make an agent read long answers or take impossible orders": (
        "security/test_hostile_peers::test_an_answer_that_may_be_too_long_is_not_read",
        "agent/test_loop::test_orders_that_nobody_could_follow_cost_the_agent_nothing",
    ),
    # what stands where there is nothing to try: torch's own rendezvous, and processes that are the same user
    "Such a person can already break or steer the training itself": (),
    "with **the same user id** and shared `/dev/shm`, `/tmp` or processes it is you: nothing": (),
}


def cells() -> dict[str, str]:
    """The last column by the first."""
    table = PAGE.read_text().partition("## Who can do what\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return {row[0]: row[2] for row in rows[1:]}


@pytest.mark.parametrize(("who", "cannot"), cells().items())
def test_each_clause_of_a_cell_is_one_that_tests_try(who: str, cannot: str) -> None:
    rest = cannot
    for clause in sorted(CLAIMS, key=len, reverse=True):
        rest = rest.replace(clause, "")
    assert NO_CLAIM.sub("", rest) == "", f"nothing tries this of {who}: {rest}"


def test_all_clauses_stand_on_the_page_and_all_tests_exist() -> None:
    page = "\n".join(cells().values())
    assert len(cells()) >= 8 and [clause for clause in CLAIMS if clause not in page] == []
    for file, _, name in (test.partition("::") for tests in CLAIMS.values() for test in tests):
        assert f"def {name}(" in (ROOT / "tests" / f"{file}.py").read_text(), (file, name)

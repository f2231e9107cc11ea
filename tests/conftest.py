"""How `make test` shares two cores: tests that start training jobs take turns on one side, all others on the other."""

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        heavy = any(item.get_closest_marker(name) for name in ("jobs", "root"))
        parts = item.nodeid.split("::")[0]
        item.add_marker(pytest.mark.xdist_group("jobs" if heavy else parts))

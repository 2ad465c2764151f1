"""Each study at smoke scale, run once for all tests that look at what it left."""

import pytest
import smoke


@pytest.fixture(scope="session")
def smoke_study(tmp_path_factory):
    """By name. Tests that ask for the same one are in one xdist_group, "smoke NAME"."""
    made = {}

    def of(name):
        if name not in made:
            made[name] = smoke.run(name, tmp_path_factory.mktemp("smoke") / name)
        return made[name]

    return of

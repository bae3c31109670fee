"""How hypothesis draws examples: the only place where its settings are made.

The normal run draws the same examples each time and on every machine. `make soak` draws ten times as many new
ones, and prints with a failure how to repeat it.
"""

from __future__ import annotations

from typing import Final

from hypothesis import HealthCheck, Phase, settings

NORMAL: Final = "normal"
SOAK: Final = "soak"
MORE: Final = 10  # times the examples, in a soak


def register_profiles() -> None:
    """Loads the profile of the normal run; `--hypothesis-profile=soak` chooses the other one."""
    machine = {"deadline": None, "suppress_health_check": list(HealthCheck)}  # no matter how fast it is
    settings.register_profile(NORMAL, derandomize=True, database=None, **machine)
    settings.register_profile(SOAK, database=None, print_blob=True, max_examples=100 * MORE, **machine)
    settings.load_profile(NORMAL)


def examples(count: int, *, shrink: bool = True) -> settings:
    """For a property that takes more or fewer examples than usual. Without `shrink`, a failing example is
    reported as it was drawn: for those that take seconds each."""
    soaking = settings.get_current_profile_name() == SOAK
    phases = set(Phase) if shrink else {Phase.explicit, Phase.generate}
    return settings(max_examples=count * MORE if soaking else count, phases=phases)


def at_length(count: int) -> settings:
    """For a test that runs in a soak only."""
    return settings(max_examples=count)

"""How hypothesis draws examples: the only place where its settings are made.

A property names how many examples it takes. The normal run draws a third of them, the same ones each time and
on every machine; `make quick` draws a tenth. `make soak` draws ten times as many new ones, and prints with a
failure how to repeat it.
"""

from __future__ import annotations

from typing import Final

from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import providers

QUICK: Final = "quick"
NORMAL: Final = "normal"
SOAK: Final = "soak"
TIMES: Final = 10  # fewer examples in a quick run, more in a soak
SHARE: Final = 3  # of the examples of a property, the normal run draws one in so many
USUAL: Final = 100


def register_profiles() -> None:
    """Loads the profile of the normal run; `--hypothesis-profile` chooses another one."""
    # Constants of whatever modules happen to be imported would be drawn, too: which those are depends on
    # the tests that ran before in the same process.
    providers.is_local_module_file = lambda _file: False  # type: ignore[assignment]
    machine = {"deadline": None, "suppress_health_check": list(HealthCheck)}  # no matter how fast it is
    settings.register_profile(NORMAL, derandomize=True, database=None, max_examples=USUAL // SHARE, **machine)
    settings.register_profile(QUICK, settings.get_profile(NORMAL), max_examples=USUAL // TIMES)
    settings.register_profile(SOAK, database=None, print_blob=True, max_examples=USUAL * TIMES, **machine)
    settings.load_profile(NORMAL)


def examples(count: int, *, shrink: bool = True) -> settings:
    """For a property that takes more or fewer examples than usual. Without `shrink`, a failing example is
    reported as it was drawn: for those that take seconds each."""
    normal = max(1, count // SHARE)
    drawn = {QUICK: max(1, count // TIMES), SOAK: count * TIMES}
    phases = set(Phase) if shrink else {Phase.explicit, Phase.generate}
    return settings(
        max_examples=drawn.get(settings.get_current_profile_name() or NORMAL, normal), phases=phases
    )


def at_length(count: int) -> settings:
    """For a test that runs in a soak only."""
    return settings(max_examples=count)


def stories(count: int, *, steps: int) -> settings:
    """For a state machine: so many stories, each of up to so many steps. A soak runs it again and again; each
    time it tells twice as many, three times as long, and finds the shortest one that fails."""
    if settings.get_current_profile_name() == SOAK:
        return settings(max_examples=2 * count, stateful_step_count=3 * steps)
    return settings(examples(count, shrink=False), stateful_step_count=steps)

"""`repair`: sets damaged files aside, and has their contents made again from slices or from raw.

It makes nothing itself: what is set aside counts as not made, and later rounds make it, as after any other
change. The plan is a list of steps, and the run does those; while the log of a table is damaged, the damaged
parts of that table are not known yet, and are repaired after the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tidemill.ingest.expiry_log import DATASETS, QUARANTINE, RAW, Loss
from tidemill.ingest.gateway.damaged_logs import damaged_logs
from tidemill.ingest.slice_logs import repair_copy, repair_log
from tidemill.model.damage import Damage, FileKind
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, Interval, align
from tidemill.pipeline.damaged_files import kind_of, set_aside
from tidemill.pipeline.recover_damage import RecoveryDamage
from tidemill.pipeline.recover_stream import is_unknown
from tidemill.pipeline.rounds import run_until_idle
from tidemill.pipeline.scrub import scrub
from tidemill.raw.damaged_parts import SendBack, begin_send_back, plan_send_back, plan_send_back_all
from tidemill.raw.part_names import is_of_one_batch
from tidemill.raw.retract import finish_retractions
from tidemill.storage import layout
from tidemill.storage.state.faults import WAREHOUSE, faults_of
from tidemill.storage.state.protocol import State
from tidemill.storage.tables import log_copies

if TYPE_CHECKING:
    from tidemill.pipeline.workers import Workers

log = logging.getLogger(__name__)

PATIENCE: Final = 60.0  # seconds that a repair waits for the round of another process
_MILLISECOND: Final = 1000
# logs show what else there is: they are repaired first
_LOGS: Final = (FileKind.SLICE_LOG, FileKind.TABLE_LOG)
_OF_RAW: Final = (FileKind.RAW, FileKind.QUARANTINE)
# Files that are made again when they are next needed, once they are gone.
_FOUND_MISSING: Final = {
    FileKind.ACCEPTED_IDS: "made again from raw",
    FileKind.OBSERVATIONS: "made again from raw",
    FileKind.ADMITTED_KEYS: "made again from raw",
    FileKind.OPEN_WINDOWS: "found again in raw",
    FileKind.EMPTY_DATASETS: "written again by the next window without rows",
}
_OF_OUTPUTS: Final = {
    FileKind.ROLLUP: "its tiles are made again",
    FileKind.RESULT: "its results are made again from raw",
    FileKind.INDEX: "made again from raw",
    FileKind.CHAIN: "the chains of the stream are made again from raw",
    FileKind.DATASET: "built again as a new revision",
}
# If these cannot be made again, the rest continues without them, and answers report it.
_GOES_ON_WITHOUT: Final = (
    FileKind.ROLLUP,
    FileKind.RESULT,
    FileKind.OBSERVATIONS,
    FileKind.ADMITTED_KEYS,
)
_STAYS_IN_PLACE: Final = {
    FileKind.DATASET: DATASETS,
    FileKind.RAW: RAW,
    FileKind.QUARANTINE: QUARANTINE,
}
_LOST: Final = {
    FileKind.GATEWAY_LOG: "the entries that cannot be read are lost, all others have landed; once they were"
    " sent again, remove its files in `_damaged/wal`",
    FileKind.STATE: "nothing, once `tidemill recover` has rebuilt it from the warehouse",
    FileKind.SLICE: "its bytes are lost; raw and all that is made of it still hold what was accepted from it,"
    " but it cannot be decided again",
    FileKind.EXPIRED_IDS: "repeats of events that have expired would count as new; the stream waits until the"
    " file is restored from a copy",
}


@dataclass(frozen=True, slots=True)
class RepairStep:
    """One damaged file, and what is done about it."""

    damage: Damage
    action: str  # how its contents are made again; "" if nothing can be done
    affects: str = ""  # what is lost with it for good

    @property
    def repairable(self) -> bool:
        return bool(self.action)


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """The steps, by file."""

    now: int
    steps: Sequence[RepairStep]


@dataclass(frozen=True, slots=True)
class Repaired:
    """What was done: the steps, where the damaged files are now, and what is damaged still."""

    plan: RepairPlan
    set_aside: dict[str, str]  # file -> where it is now, both in the warehouse
    left: Sequence[RepairStep]

    @property
    def lost(self) -> Sequence[RepairStep]:
        """What was set aside and could not be made again in full."""
        return [step for step in self.plan.steps if step.repairable and step.affects]

    @property
    def ok(self) -> bool:
        return not self.left and not self.lost


# -- the plan


def plan_repair(workers: Workers, damages: Iterable[Damage]) -> RepairPlan:
    """What is done about each damaged file. Changes nothing."""
    by_stream: dict[str, list[Damage]] = {}
    whole = [_of_table(workers.root, damage) for damage in damages]
    folders = {damage.file for damage in whole if _is_table(damage)}
    for damage in {damage.file: damage for damage in whole}.values():
        if not _is_table(damage) and any(damage.file.startswith(f"{folder}/") for folder in folders):
            continue  # it is set aside with its table
        by_stream.setdefault(damage.stream, []).append(damage)
    steps = [step for stream, of in by_stream.items() for step in _steps(workers, stream, of)]
    return RepairPlan(workers.warehouse.clock(), sorted(steps, key=lambda step: step.damage.file))


def find_damages(workers: Workers, streams: Sequence[str]) -> Iterator[Damage]:
    """The damage that a scrub finds now in these streams, damage that was found otherwise, and missing files
    that faults name."""
    yield from scrub(workers.warehouse, streams)
    yield from damaged_logs(workers.root)
    for known in workers.state.damages():
        if known.damage.kind is FileKind.STATE:
            yield known.damage
    for stream in (WAREHOUSE, *streams):
        for fault in faults_of(workers.state, stream):
            if fault.file and not (workers.root / fault.file).exists():
                kind = kind_of(fault.file)
                if kind is not None:
                    yield Damage(fault.file, kind, stream, fault.message)


def _of_table(root: Path, damage: Damage) -> Damage:
    """If the log of a table has lost a file that has no copy, the whole table is damaged."""
    path = root / damage.file
    if damage.kind is not FileKind.TABLE_LOG:
        return damage
    is_whole_log = path == layout.table_log(path.parent)
    table = path.parent if is_whole_log else path.parent.parent
    if not is_whole_log and log_copies.is_kept(table, path.name):
        return damage
    folder = table.relative_to(root).as_posix()
    kind = kind_of(folder)
    return damage if kind is None else Damage(folder, kind, damage.stream, f"{path.name}: {damage.reason}")


def _is_table(damage: Damage) -> bool:
    """Whether a whole table is damaged, not a single file."""
    return len(Path(damage.file).parts) == (3 if damage.kind is FileKind.RESULT else 2) and damage.kind in (
        *_OF_RAW,
        *_OF_OUTPUTS,
    )


def _steps(workers: Workers, stream: str, damages: Sequence[Damage]) -> Iterator[RepairStep]:
    files = {damage.file for damage in damages}
    lost = _irreplaceable(workers, stream, files)
    of_raw = _steps_of_raw(workers, stream, damages)
    for damage in damages:
        if damage.file in lost and _goes_on_without(workers, damage):
            yield RepairStep(damage, "set aside; answers name what is missing", lost[damage.file])
        elif damage.file in lost:
            yield RepairStep(damage, "", lost[damage.file])
        elif damage.kind in _OF_RAW:
            yield of_raw[damage.file]
        elif damage.kind in _LOST:
            yield RepairStep(damage, "", _LOST[damage.kind])
        elif damage.kind is FileKind.SLICE_LOG:
            yield RepairStep(damage, "written again from the state")
        elif damage.kind is FileKind.TABLE_LOG:
            yield RepairStep(damage, "put back from its copy")
        else:
            action = _FOUND_MISSING.get(damage.kind) or _OF_OUTPUTS.get(damage.kind) or ""
            yield RepairStep(damage, action, "" if action else f"no copy of this {damage.kind.value} is kept")


def _goes_on_without(workers: Workers, damage: Damage) -> bool:
    """Whether a file that cannot be made again is set aside; a dataset that a newer one replaced is, too."""
    is_replaced = damage.kind is FileKind.DATASET and _span_of(workers, damage) is None
    return damage.kind in _GOES_ON_WITHOUT or is_replaced


def _steps_of_raw(workers: Workers, stream: str, damages: Sequence[Damage]) -> dict[str, RepairStep]:
    """By file. The gate decides slices again beside all other events of raw: while a part of raw cannot be
    made again, none can."""
    files = {damage.file for damage in damages}
    plans = _send_backs(workers, stream, damages)
    steps = {one.file: _of_raw(one, plans[one.file], files) for one in damages if one.kind in _OF_RAW}
    held_up = (one.damage for one in steps.values() if not one.repairable)
    if first := next((one.file for one in held_up if one.kind is FileKind.RAW), None):
        for file, step in steps.items():
            if step.repairable:
                steps[file] = RepairStep(step.damage, "", f"its rows, until {first} is repaired or put back")
    return steps


def _of_raw(damage: Damage, plan: SendBack, damaged: Collection[str]) -> RepairStep:
    """The step for a part of raw: it is made again from its slices, if all of them are intact."""
    gone = [entry.slice.path for entry in plan.slices if entry.slice.path in damaged]
    if plan.expired:
        return RepairStep(
            damage, "", f"its rows: raw of {len(plan.expired)} of its slices has expired in part"
        )
    if gone:
        one = f"{gone[0]}{f' and {len(gone) - 1} more' if len(gone) > 1 else ''}"
        return RepairStep(damage, "", f"its rows, until the slices that it was made of are put back: {one}")
    count = f"{len(plan.slices)} slices are" if plan.slices else "the slices that it was made of are"
    return RepairStep(damage, f"{count} decided again")


def _send_backs(workers: Workers, stream: str, damages: Sequence[Damage]) -> dict[str, SendBack]:
    """The send-back for each damaged part of raw and quarantine. Which batches have rows in a part that is
    not named for one is only known for all such parts together."""
    of_raw = [damage for damage in damages if damage.kind in _OF_RAW]
    if all(not _is_table(damage) and is_of_one_batch(damage.file) for damage in of_raw):
        return {damage.file: _send_back_of(workers, stream, [damage]) for damage in of_raw}
    plan = _send_back_of(workers, stream, of_raw)
    return {damage.file: plan for damage in of_raw}


def _irreplaceable(workers: Workers, stream: str, files: Collection[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for output in workers.outputs(stream) if stream in workers.project.streams else ():
        found |= output.irreplaceable(files)
    return found


def _send_back_of(workers: Workers, stream: str, damages: Iterable[Damage]) -> SendBack:
    """The send-back for the damaged parts of raw and quarantine of a stream."""
    files = [damage.file for damage in damages if damage.kind in _OF_RAW]
    if not files:
        return SendBack(stream, (), ())
    root = workers.root
    if any(_is_table(damage) for damage in damages if damage.kind in _OF_RAW):
        return plan_send_back_all(workers.warehouse, stream)
    raw, quarantine = (
        layout.in_table(layout.table(root, kind, stream), root, files) for kind in ("raw", "quarantine")
    )
    return plan_send_back(workers.warehouse, stream, raw, quarantine)


# -- doing it


def repair_streams(workers: Workers, streams: Sequence[str], clock: Callable[[], int]) -> Repaired:
    """Repair, and run the rounds that make contents again, until nothing more can be repaired: what is made
    again may show other damage."""
    steps: dict[str, RepairStep] = {}
    aside: dict[str, str] = {}
    while True:
        with workers.warehouse.working("repair", PATIENCE):
            plan, done = repair_damages(workers, streams, aside)
        steps = {step.damage.file: step for step in plan.steps} | steps
        if not done:
            return Repaired(RepairPlan(plan.now, list(steps.values())), aside, plan.steps)
        aside |= done
        run_until_idle(workers, clock, PATIENCE)  # a daemon beside it has rounds of its own


def repair_damages(
    workers: Workers, streams: Sequence[str], before: Collection[str]
) -> tuple[RepairPlan, dict[str, str]]:
    """Look for damaged files and repair them, except those that were repaired `before`. Logs come first: what
    else is damaged in a table is only known once its log can be read. Returns the steps, and where the files
    that were set aside are now. The caller must hold the tick lock."""
    plan = plan_repair(workers, find_damages(workers, streams))
    logs = [step for step in plan.steps if step.damage.kind in _LOGS and step.damage.file not in before]
    done = repair(workers, RepairPlan(plan.now, logs))
    if done:
        repaired = [step for step in logs if step.damage.file in done]
        plan = plan_repair(workers, find_damages(workers, streams))
        plan = RepairPlan(plan.now, [*repaired, *plan.steps])
    rest = [step for step in plan.steps if step.damage.file not in {*before, *done}]
    done |= repair(workers, RepairPlan(plan.now, rest))
    return plan, done


def repair(workers: Workers, plan: RepairPlan) -> dict[str, str]:
    """Set the files of the plan aside, and have their contents made again by the next rounds. The caller must
    hold the tick lock. Returns the new path of each file, by its old one. After a crash, repeat the call."""
    done: dict[str, str] = {}
    steps: dict[str, list[RepairStep]] = {}
    for step in plan.steps:
        if step.repairable:
            steps.setdefault(step.damage.stream, []).append(step)
    for stream, of in steps.items():
        done |= _repair_stream(workers, stream, [step.damage for step in of], plan.now)
    _record_losses(workers, plan)
    return done


def _record_losses(workers: Workers, plan: RepairPlan) -> None:
    """Record what stays damaged, so that answers leave it out and report it until the files are restored."""
    log = workers.warehouse.expiries
    lost: list[Loss] = []
    for step in plan.steps:
        damage = step.damage
        kind = _STAYS_IN_PLACE.get(damage.kind)
        if step.repairable or kind is None or not damage.stream:
            continue
        if damage.file in {one.file for one in log.losses(damage.stream).get(kind, ())}:
            continue
        span = _span_of(workers, damage)
        if span is not None:
            lost.append(Loss(damage.stream, kind, span, damage.file, plan.now))
    log.append(lost)


def _span_of(workers: Workers, damage: Damage) -> Interval | None:
    """The span of time of a file, from the state or the log of its table; None if it had nothing that an
    answer could lack."""
    if damage.kind is FileKind.DATASET:
        windows = workers.state.windows(damage.stream)
        return next((one.key.interval for one in windows if one.file == damage.file), None)
    kind: layout.TableKind = "raw" if damage.kind is FileKind.RAW else "quarantine"
    found = workers.warehouse.readers.snapshot(kind, damage.stream)
    if found is None:
        return None
    (path,) = layout.in_table(found.root, workers.root, [damage.file]) or [""]
    part = found.by_path.get(path)
    if part is None or not part.rows:
        return None
    column = "event_time" if kind == "raw" else "arrival"
    first, last = part.mins.get(column), part.maxs.get(column)
    start = align(first, _MILLISECOND) if isinstance(first, int) else MIN_INSTANT
    end = align(last, _MILLISECOND) + _MILLISECOND if isinstance(last, int) else MAX_INSTANT
    return Interval(start, end)  # the log of a table rounds to milliseconds


def _repair_stream(workers: Workers, stream: str, damages: Sequence[Damage], now: int) -> dict[str, str]:
    done = {damage.file: set_aside(workers.root, damage, now) for damage in damages if damage.kind in _LOGS}
    for damage in damages:
        if damage.kind is FileKind.SLICE_LOG:
            _repair_log(workers, Path(damage.file))
        elif damage.kind is FileKind.TABLE_LOG:
            path = workers.root / damage.file
            log_copies.put_back(path.parent.parent, path.name)
    if is_unknown(workers, stream):
        done |= _undo(workers, [damage for damage in damages if damage.kind in _OF_RAW], now)
        damages = [damage for damage in damages if damage.file not in done or damage.kind in _LOGS]
    back = _send_back_of(workers, stream, damages)  # before the files are gone
    if back.batches:
        reason = "; ".join(f"{one.file}: {one.reason}" for one in damages if one.kind in _OF_RAW)
        begin_send_back(workers.warehouse, back, reason, now)
    done |= {
        damage.file: set_aside(workers.root, damage, now) for damage in damages if damage.kind not in _LOGS
    }
    _forget_tables(workers, stream, damages)
    if back.batches:
        finish_retractions(workers.warehouse, workers.acceptor, stream)
    workers.forget(stream)
    files = {damage.file for damage in damages if damage.kind not in _OF_RAW}
    for output in workers.outputs(stream) if stream in workers.project.streams else ():
        output.lose(files, now)
    workers.forget(stream)
    _clear(workers.state, damages)
    for damage in damages:
        context = {"stream": stream, "file": damage.file}
        log.warning("set a damaged file aside: %s", damage.reason, extra=context)
    return done


def _undo(workers: Workers, damages: Sequence[Damage], now: int) -> dict[str, str]:
    """For a stream that the state knows nothing of, as `recover` does it: only raw has its batches."""
    undone = RecoveryDamage(workers)
    if damages and undone.undo(damages, now):
        workers.state.clear_damages([damage.file for damage in damages])
        workers.forget(damages[0].stream)
    return undone.set_aside


def _forget_tables(workers: Workers, stream: str, damages: Iterable[Damage]) -> None:
    """Tables that are gone as a whole start again."""
    gone = {Path(damage.file).parts[0] for damage in damages if _is_table(damage)}
    workers.state.forget_versions(stream, gone)
    for window in workers.project.stream(stream).windows if "raw" in gone else ():
        workers.state.set_checkpoint(stream, window, None)  # checkpoints that refer to the lost raw table
    workers.forget(stream)


def _clear(state: State, damages: Sequence[Damage]) -> None:
    folders = [f"{damage.file}/" for damage in damages if _is_table(damage)]
    known = (one.damage.file for one in state.damages())
    inside = [file for file in known if any(file.startswith(folder) for folder in folders)]
    state.clear_damages([*(damage.file for damage in damages), *inside])


def _repair_log(workers: Workers, file: Path) -> None:
    if workers.root / file == layout.slice_log_copy(workers.root, file.name):
        repair_copy(workers.root, file.name)
    else:
        repair_log(workers.root, workers.state, file.name)

"""The sha256 of several files at once, for processors that have no instructions for it.

There `hashlib` hashes one file after another, some 400 MB/s. Sixteen files side by side, one in each lane of
the vector registers, are hashed several times as fast, to the same digests (FIPS 180-4).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import isqrt
from typing import TYPE_CHECKING, BinaryIO, Final

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.extending import intrinsic

from tidemill.formats.compiled import walk

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.typing import BaseContext as TypingContext
    from numba.core.typing.templates import Signature

    from tidemill.formats.arrays import Bytes, Ints

LANES: Final = 16
BLOCK: Final = 64  # bytes
PIECE: Final = 2048 * BLOCK  # of a file that are in memory at a time
# How many bytes hashlib hashes while a lane hashes one. The first of these that the processor has counts.
_BY_HASHLIB: Final = {"sha": None, "avx512f": 4, "avx2": 9}
_ROUNDS: Final = 64
_STEPS: Final = 16  # rounds between two loops over the words of a block


def _roots(power: int, count: int) -> list[int]:
    """The first 32 bits behind the point of the square or cube roots of the first primes."""
    primes = [n for n in range(2, 312) if all(n % d for d in range(2, isqrt(n) + 1))][:count]
    return [_root(prime << (32 * power), power) & 0xFFFFFFFF for prime in primes]


def _root(value: int, power: int) -> int:
    """The largest integer whose power is at most `value`."""
    low, high = 0, 1 << 40
    while low < high - 1:
        middle = (low + high) // 2
        low, high = (middle, high) if middle**power <= value else (low, middle)
    return low


_START: Final = np.array(_roots(2, 8), np.uint32)
_CONSTANTS: Final = np.array(_roots(3, _ROUNDS), np.uint32)

_WORD, _INT = ir.IntType(32), ir.IntType(64)
_VECTOR = ir.VectorType(_WORD, LANES)  # one word of each lane


def _splat(value: int) -> ir.Constant:
    return ir.Constant(_VECTOR, [value] * LANES)


def _rotated(builder: ir.IRBuilder, x: ir.Value, by: int) -> ir.Value:
    return builder.or_(builder.lshr(x, _splat(by)), builder.shl(x, _splat(32 - by)))


def _mixed(builder: ir.IRBuilder, x: ir.Value, first: int, second: int, third: ir.Value) -> ir.Value:
    return builder.xor(builder.xor(_rotated(builder, x, first), _rotated(builder, x, second)), third)


def _message(builder: ir.IRBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """The words of the blocks, big-endian, each for all lanes: from one row of words for each lane."""
    half = LANES // 2
    low = [word for at in range(half) for word in (at, at + LANES)]
    high = [word + half for word in low]
    masks = [ir.Constant(_VECTOR, mask) for mask in (low, high)]
    for _ in range(
        LANES.bit_length() - 1
    ):  # each pass interleaves the first half of the rows with the second
        rows = [
            builder.shuffle_vector(rows[at // 2], rows[at // 2 + half], masks[at % 2]) for at in range(LANES)
        ]
    octets = ir.VectorType(ir.IntType(8), 4 * LANES)
    swapped = ir.Constant(ir.VectorType(_WORD, 4 * LANES), [at ^ 3 for at in range(4 * LANES)])
    as_octets = [builder.bitcast(row, octets) for row in rows]
    return [builder.bitcast(builder.shuffle_vector(row, row, swapped), _VECTOR) for row in as_octets]


def _scheduled(builder: ir.IRBuilder, words: Sequence[ir.Value]) -> list[ir.Value]:
    """The next sixteen words of the schedule."""
    words = list(words)
    for at in range(16):
        early, late = words[(at + 1) % 16], words[(at + 14) % 16]
        small = _mixed(builder, early, 7, 18, builder.lshr(early, _splat(3)))
        large = _mixed(builder, late, 17, 19, builder.lshr(late, _splat(10)))
        words[at] = builder.add(builder.add(words[at], small), builder.add(words[(at + 9) % 16], large))
    return words


def _rounds(
    builder: ir.IRBuilder, state: Sequence[ir.Value], words: Sequence[ir.Value], constants: ir.Value
) -> list[ir.Value]:
    """Sixteen rounds, with the constants that begin at this address."""
    a, b, c, d, e, f, g, h = state
    for at, word in enumerate(words):
        constant = builder.load(builder.gep(constants, [ir.Constant(_INT, at)]))
        lane = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), constant, ir.Constant(_WORD, 0))
        spread = builder.shuffle_vector(lane, lane, _splat(0))
        chosen = builder.xor(g, builder.and_(e, builder.xor(f, g)))
        first = builder.add(builder.add(h, _mixed(builder, e, 6, 11, _rotated(builder, e, 25))), chosen)
        first = builder.add(first, builder.add(word, spread))
        most = builder.or_(builder.and_(a, b), builder.and_(c, builder.or_(a, b)))
        second = builder.add(_mixed(builder, a, 2, 13, _rotated(builder, a, 22)), most)
        a, b, c, d, e, f, g, h = builder.add(first, second), a, b, c, builder.add(d, first), e, f, g
    return [a, b, c, d, e, f, g, h]


def _loop(
    builder: ir.IRBuilder, count: ir.Value, begin: Sequence[ir.Value],
    body: Callable[[ir.Value, Sequence[ir.Value]], Sequence[ir.Value]],
) -> list[ir.Value]:  # fmt: skip
    """Values to which the body is applied `count` times."""
    before = builder.block
    head, inside, after = (builder.append_basic_block(name) for name in ("head", "inside", "after"))
    builder.branch(head)
    builder.position_at_end(head)
    number = builder.phi(_INT)
    values = [builder.phi(value.type) for value in begin]
    builder.cbranch(builder.icmp_signed("<", number, count), inside, after)
    builder.position_at_end(inside)
    made = body(number, values)
    following = builder.add(number, ir.Constant(_INT, 1))
    phis, firsts, nexts = [number, *values], [ir.Constant(_INT, 0), *begin], [following, *made]
    for phi, first, again in zip(phis, firsts, nexts, strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(again, builder.block)
    builder.branch(head)
    builder.position_at_end(after)
    return values


@intrinsic
def _compress(  # type: ignore[no-untyped-def]
    _typing: TypingContext,
    state: types.Array,
    constants: types.Array,
    data: types.Array,
    starts: types.Array,
    blocks: types.Integer,
):
    """Add `blocks` blocks to the state of each lane. Those of lane i begin at data[starts[i]]."""

    def build(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: tuple[ir.Value, ...]
    ) -> ir.Value:
        held, table, octets, begins = (
            context.make_array(kind)(context, builder, value).data
            for kind, value in zip(signature.args[:4], args[:4], strict=True)
        )
        rows = builder.bitcast(held, _VECTOR.as_pointer())
        slots = [builder.gep(rows, [ir.Constant(_INT, at)]) for at in range(8)]
        table = builder.bitcast(table, _WORD.as_pointer())
        lanes = [
            builder.gep(octets, [builder.load(builder.gep(begins, [ir.Constant(_INT, lane)]))])
            for lane in range(LANES)
        ]

        def block(number: ir.Value, state: Sequence[ir.Value]) -> list[ir.Value]:
            offset = builder.mul(number, ir.Constant(_INT, BLOCK))
            at = [builder.bitcast(builder.gep(lane, [offset]), _VECTOR.as_pointer()) for lane in lanes]
            words = _message(builder, [builder.load(pointer, align=1) for pointer in at])

            def steps(step: ir.Value, values: Sequence[ir.Value]) -> list[ir.Value]:
                own = builder.gep(table, [builder.mul(step, ir.Constant(_INT, _STEPS))])
                return [*_rounds(builder, values[:8], values[8:], own), *_scheduled(builder, values[8:])]

            found = _loop(builder, ir.Constant(_INT, _ROUNDS // _STEPS), [*state, *words], steps)
            return [builder.add(old, new) for old, new in zip(state, found, strict=False)]

        made = _loop(builder, args[4], [builder.load(slot, align=4) for slot in slots], block)
        for slot, value in zip(slots, made, strict=True):
            builder.store(value, slot, align=4)
        return context.get_dummy_value()

    return types.void(state, constants, data, starts, blocks), build


@walk
def _add_blocks(state: Bytes, constants: Bytes, data: Bytes, starts: Ints, blocks: int) -> None:
    _compress(state, constants, data, starts, blocks)


@dataclass(slots=True)
class _Lane:
    """One lane, and the file that is in it."""

    room: Bytes  # for a piece of the file, and its padding
    file: BinaryIO | None = None
    number: int = 0  # of the file
    size: int = 0  # that was read of it
    at: int = 0  # first byte of the room that was not hashed
    end: int = 0
    whole: bool = True  # the rest of the file is in the room, padded

    @property
    def blocks(self) -> int:
        return (self.end - self.at) // BLOCK

    def begin(self, number: int, file: BinaryIO) -> None:
        self.file, self.number, self.size, self.at, self.end, self.whole = file, number, 0, 0, 0, False

    def fill(self) -> None:
        """Read on, if less than half of a piece is left."""
        if self.whole or self.end - self.at > PIECE // 2:
            return
        left = self.end - self.at
        self.room[:left] = self.room[self.at : self.end]
        self.at, self.end = 0, left
        assert self.file is not None
        while self.end < PIECE:
            read = self.file.readinto(self.room[self.end : PIECE])  # type: ignore[attr-defined]
            if not read:
                self._pad()
                return
            self.size += read
            self.end += read

    def _pad(self) -> None:
        """Behind the last byte: one bit, zeros, and the number of bits."""
        bits = (8 * self.size).to_bytes(8, "big")
        zeros = -(self.end + 1 + len(bits)) % BLOCK
        tail = b"\x80" + bytes(zeros) + bits
        self.room[self.end : self.end + len(tail)] = np.frombuffer(tail, np.uint8)
        self.end += len(tail)
        self.whole = True


def _side_by_side(files: Sequence[BinaryIO]) -> list[str]:
    """The digests of files in the order given; each goes to the next lane that is free."""
    room = np.zeros((LANES, PIECE + 2 * BLOCK), np.uint8)
    lanes = [_Lane(room[number]) for number in range(LANES)]
    state = np.zeros((len(_START), LANES), np.uint32)
    found = [""] * len(files)
    waiting = list(enumerate(files))[::-1]
    busy: dict[int, _Lane] = {}
    while True:
        for number in range(LANES):
            if number not in busy and waiting:
                busy[number] = lanes[number]
                busy[number].begin(*waiting.pop())
                state[:, number] = _START
        if not busy:
            return found
        for lane in busy.values():
            lane.fill()
        blocks = min(lane.blocks for lane in busy.values())
        # A lane without a file hashes whatever is in its room.
        offsets = [busy[number].at if number in busy else 0 for number in range(LANES)]
        starts = np.array(offsets, np.int64) + room.shape[1] * np.arange(LANES)
        _add_blocks(state, _CONSTANTS, room.reshape(-1), starts, blocks)
        for number, lane in list(busy.items()):
            lane.at += blocks * BLOCK
            if lane.whole and not lane.blocks:
                found[lane.number] = state[:, number].astype(">u4").tobytes().hex()
                del busy[number]


def _shared(sizes: Sequence[int], groups: int) -> list[list[int]]:
    """Which of the files each group gets: about as many bytes each."""
    out: list[list[int]] = [[] for _ in range(groups)]
    filled = [(0, group) for group in range(groups)]
    for number in sorted(range(len(sizes)), key=lambda n: -sizes[n]):
        held, group = heapq.heappop(filled)
        out[group].append(number)
        heapq.heappush(filled, (held + sizes[number], group))
    return out


def is_faster(sizes: Sequence[int], cores: int, has: Mapping[str, bool] | None = None) -> bool:
    """Whether files of these sizes are hashed sooner side by side, with as many threads as there are cores,
    than one by one. `has`: what the processor has, if it is not this one."""
    features = binding.get_host_cpu_features() if has is None else has
    slower = next((times for name, times in _BY_HASHLIB.items() if features.get(name)), None)
    if slower is None or not sizes:
        return False
    groups = [[sizes[n] for n in group] for group in _shared(sizes, min(cores, len(sizes)))]
    longest = max(sum(group[n] for n in lane) for group in groups for lane in _shared(group, LANES))
    return longest * slower < sum(sizes) / cores


def sha256_of(files: Sequence[BinaryIO], sizes: Sequence[int], cores: int) -> list[str]:
    """The sha256 of each file, from where it is to its end. `sizes` say which of them take long."""
    groups = _shared(sizes, min(cores, len(files)))
    found = [""] * len(files)
    with ThreadPoolExecutor(len(groups)) as pool:
        done = pool.map(_side_by_side, [[files[number] for number in group] for group in groups])
        for group, digests in zip(groups, done, strict=True):
            for number, digest in zip(group, digests, strict=True):
                found[number] = digest
    return found

"""Reads and writes bytes and 8-byte words of an array at any offset, without numba's index checks.

The caller must make sure that the offset is inside the array.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.typing import BaseContext as TypingContext
    from numba.core.typing.templates import Signature

    from tidemill.formats.arrays import Bytes

_BYTE = ir.IntType(8)
_WORD = ir.IntType(64)


def _pointer(
    context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: tuple[ir.Value, ir.Value]
) -> ir.Value:
    array = context.make_array(signature.args[0])(context, builder, args[0])
    return builder.gep(builder.bitcast(array.data, _BYTE.as_pointer()), [args[1]])


@intrinsic
def byte_at(_typing: TypingContext, array: types.Array, at: types.Integer):  # type: ignore[no-untyped-def]
    """b[at] as a signed integer."""

    def build(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: tuple[ir.Value, ir.Value]
    ) -> ir.Value:
        return builder.zext(builder.load(_pointer(context, builder, signature, args)), _WORD)

    return types.int64(array, types.int64), build


@intrinsic
def word_at(_typing: TypingContext, array: types.Array, at: types.Integer):  # type: ignore[no-untyped-def]
    """b[at:at+8] as an unsigned little-endian integer."""

    def build(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: tuple[ir.Value, ir.Value]
    ) -> ir.Value:
        pointer = _pointer(context, builder, signature, args)
        return builder.load(builder.bitcast(pointer, _WORD.as_pointer()), align=1)

    return types.uint64(array, types.int64), build


@intrinsic
def put_word(_typing: TypingContext, array: types.Array, at: types.Integer, word: types.Integer):  # type: ignore[no-untyped-def]
    """b[at:at+8] = word."""

    def build(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: tuple[ir.Value, ...]
    ) -> ir.Value:
        pointer = _pointer(context, builder, signature, (args[0], args[1]))
        builder.store(args[2], builder.bitcast(pointer, _WORD.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.uint64), build


@intrinsic
def first_marked(_typing: TypingContext, marks: types.Integer):  # type: ignore[no-untyped-def]
    """The index of the lowest byte of a non-zero word that has a bit set."""

    def build(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: tuple[ir.Value]
    ) -> ir.Value:
        zeros = builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))
        return builder.lshr(zeros, ir.Constant(_WORD, 3))

    return types.int64(types.uint64), build


@njit(cache=True, inline="always")
def copy_bytes(b: Bytes, start: int, end: int, out: Bytes, at: int) -> None:
    """out[at:] = b[start:end]."""
    while start + 8 <= end:
        put_word(out, at, word_at(b, start))
        start += 8
        at += 8
    while start < end:
        out[at] = b[start]
        start += 1
        at += 1

"""Reads bytes and 8-byte words of an array at any offset, and copies spans, without numba's index checks.

The caller must make sure that the offset is inside the array.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.typing import BaseContext as TypingContext
    from numba.core.typing.templates import Signature


_BYTE = ir.IntType(8)
_WORD = ir.IntType(64)
WIDE = 32  # bytes that `first_unplain` looks at and `copy_wide` copies
_WIDE = ir.VectorType(_BYTE, WIDE)
_MARKS = ir.IntType(WIDE)


def _pointer(
    context: BaseContext, builder: ir.IRBuilder, kind: types.Array, args: tuple[ir.Value, ir.Value]
) -> ir.Value:
    """The address of an element: `args` are the array, of this kind, and the index."""
    array = context.make_array(kind)(context, builder, args[0])
    return builder.gep(builder.bitcast(array.data, _BYTE.as_pointer()), [args[1]])


@intrinsic
def byte_at(_typing: TypingContext, array: types.Array, at: types.Integer):  # type: ignore[no-untyped-def]
    """b[at] as a signed integer."""

    def build(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: tuple[ir.Value, ir.Value]
    ) -> ir.Value:
        return builder.zext(builder.load(_pointer(context, builder, signature.args[0], args)), _WORD)

    return types.int64(array, types.int64), build


@intrinsic
def word_at(_typing: TypingContext, array: types.Array, at: types.Integer):  # type: ignore[no-untyped-def]
    """b[at:at+8] as an unsigned little-endian integer."""

    def build(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: tuple[ir.Value, ir.Value]
    ) -> ir.Value:
        pointer = _pointer(context, builder, signature.args[0], args)
        return builder.load(builder.bitcast(pointer, _WORD.as_pointer()), align=1)

    return types.uint64(array, types.int64), build


@intrinsic
def first_marked(_typing: TypingContext, marks: types.Integer):  # type: ignore[no-untyped-def]
    """The index of the lowest byte of a non-zero word that has a bit set."""

    def build(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: tuple[ir.Value]
    ) -> ir.Value:
        zeros = builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))
        return builder.lshr(zeros, ir.Constant(_WORD, 3))

    return types.int64(types.uint64), build


@intrinsic
def first_unplain(_typing: TypingContext, array: types.Array, at: types.Integer):  # type: ignore[no-untyped-def]
    """How many of the WIDE bytes at b[at:] come before the first quote, backslash or control character."""

    def build(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: tuple[ir.Value, ir.Value]
    ) -> ir.Value:
        pointer = builder.bitcast(_pointer(context, builder, signature.args[0], args), _WIDE.as_pointer())
        loaded = builder.load(pointer, align=1)
        quote, backslash, space = (ir.Constant(_WIDE, [value] * WIDE) for value in (0x22, 0x5C, 0x20))
        ends = builder.or_(
            builder.icmp_unsigned("==", loaded, quote), builder.icmp_unsigned("==", loaded, backslash)
        )
        ends = builder.or_(ends, builder.icmp_unsigned("<", loaded, space))
        marks = builder.bitcast(ends, _MARKS)
        return builder.zext(builder.cttz(marks, ir.Constant(ir.IntType(1), 0)), _WORD)

    return types.int64(array, types.int64), build


@intrinsic
def copy_wide(  # type: ignore[no-untyped-def]
    _typing: TypingContext, array: types.Array, start: types.Integer, out: types.Array, at: types.Integer
):
    """out[at:at+WIDE] = b[start:start+WIDE]."""

    def build(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: tuple[ir.Value, ...]
    ) -> ir.Value:
        source = _pointer(context, builder, signature.args[0], (args[0], args[1]))
        target = _pointer(context, builder, signature.args[2], (args[2], args[3]))
        loaded = builder.load(builder.bitcast(source, _WIDE.as_pointer()), align=1)
        builder.store(loaded, builder.bitcast(target, _WIDE.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(array, types.int64, out, types.int64), build


@intrinsic
def copy_bytes(  # type: ignore[no-untyped-def]
    _typing: TypingContext,
    array: types.Array,
    start: types.Integer,
    end: types.Integer,
    out: types.Array,
    at: types.Integer,
):
    """out[at:] = b[start:end]; nothing if there are no such bytes. The two must not overlap."""

    def build(
        context: BaseContext, builder: ir.IRBuilder, signature: Signature, args: tuple[ir.Value, ...]
    ) -> ir.Value:
        source = _pointer(context, builder, signature.args[0], (args[0], args[1]))
        target = _pointer(context, builder, signature.args[3], (args[3], args[4]))
        size = builder.sub(args[2], args[1])
        nothing = ir.Constant(_WORD, 0)
        size = builder.select(builder.icmp_signed(">", size, nothing), size, nothing)
        cgutils.raw_memcpy(builder, target, source, size, 1)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64, out, types.int64), build

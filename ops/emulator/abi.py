"""The structures of ``csrc/launch.h`` and ``include/emu/work.h`` for ctypes."""

from __future__ import annotations

import ctypes
from enum import IntEnum

PIPES = ("S", "V", "M", "MTE1", "MTE2", "MTE3", "FIX")
VECTOR_OPS = (
    "simple",
    "transcendental",
    "cast",
    "copy",
    "broadcast",
    "compare",
    "reduce",
    "gather_mask",
    "gather",
    "sort",
    "transpose",
)
PATHS = (
    "GM-UB",
    "GM-L1",
    "GM-L0A",
    "GM-L0B",
    "UB-GM",
    "UB-L1",
    "UB-UB",
    "L1-GM",
    "L1-L0A",
    "L1-L0B",
    "L1-BT",
    "L1-FB",
    "L0C-GM",
    "L0C-L1",
    "fill",
)
CUBE_TYPES = ("b16", "int8", "int4", "f32", "hf32")


class Role(IntEnum):
    """What a kernel does with an argument."""

    INPUT = 0
    OUTPUT = 1
    INOUT = 2
    WORKSPACE = 3
    VALUE = 4


# Kinds of statements that order others, as the report names them; the number is `emu::Order`.
ORDERS = ("", "barrier", "flag", "cross-flag", "queue", "reuse", "sync-all")


class CArgument(ctypes.Structure):
    """``emu::Argument``."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("bytes", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("role", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    )


class CStatement(ctypes.Structure):
    """``emu::Statement``."""

    _fields_ = (
        ("kind", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
        ("first", ctypes.c_char_p),
        ("second", ctypes.c_char_p),
    )


class Rates(ctypes.Structure):
    """``emu::Rates``: cycles, elements per cycle and bytes per cycle of one core.

    ``hbm_bytes`` and ``l2_bytes`` are those of all cores together. Zero is no time and no limit.
    """

    _fields_ = (
        ("issue", ctypes.c_double),
        ("vector_start", ctypes.c_double),
        ("elements", ctypes.c_double * len(VECTOR_OPS)),
        ("cube_start", ctypes.c_double),
        ("cube_k", ctypes.c_double * len(CUBE_TYPES)),
        ("move_start", ctypes.c_double * len(PATHS)),
        ("move_block", ctypes.c_double * len(PATHS)),
        ("move_bytes", ctypes.c_double * len(PATHS)),
        ("flag", ctypes.c_double),
        ("cross_flag", ctypes.c_double),
        ("hbm_bytes", ctypes.c_double),
        ("l2_bytes", ctypes.c_double),
    )


class COptions(ctypes.Structure):
    """``emu::Options``."""

    _fields_ = (
        ("blocks", ctypes.c_int32),
        ("random", ctypes.c_int32),
        ("seed", ctypes.c_uint64),
        ("shadow", ctypes.c_int32),
        ("bins", ctypes.c_int32),
        ("isolated", ctypes.c_int32),
        ("reserved_ub", ctypes.c_uint32),
        ("timeout", ctypes.c_double),
        ("most_findings", ctypes.c_uint32),
        ("block_limit", ctypes.c_uint32),
        ("disabled", CStatement),
        ("rates", ctypes.POINTER(Rates)),
        ("models", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    )

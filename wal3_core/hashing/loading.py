"""Compiled code in this process. Needs llvmlite, not numba."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from llvmlite import binding

from wal3_core.hashing.target import FUNCTION, machine

if TYPE_CHECKING:
    from wal3_core.hashing.calling import Function

# The addresses of its result, of its errors, and of what it is to do.
_SIGNATURE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


def load(code: bytes) -> Function:
    """Load an object file, and return its function."""
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine())
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    function = _SIGNATURE(engine.get_function_address(FUNCTION))
    # The code must stay as long as a thread may run it, also one that the interpreter's end finds at it.
    engine.detach()
    return function

"""Compiles the code that hashes records side by side: ``python -m wal3_core.hashing.building``.

A process of its own, at the lowest priority: a compiler takes seconds and a hundred megabytes, holds the interpreter's
lock, and must not be under way when a process forks or ends.
"""

from __future__ import annotations

import os
import re

from llvmlite import binding
from numba import njit, types
from numba.extending import register_jitable

from wal3_core.hashing import code_cache
from wal3_core.hashing.kernel import COMPILED, sum_records
from wal3_core.hashing.target import FUNCTION, code_name, machine

_NICE = 19
# Only with a frame pointer does a function align its stack: vectors that lie there across two lines of the cache take
# a third more time, in some processes and not in others.
_FUNCTION_HEAD, _WITH_FRAME = re.compile(r"^(define .*?)( \{)$", re.MULTILINE), r'\1 "frame-pointer"="all"\2'


def compiled() -> bytes:
    """Return an object file with the function; it needs nothing of Python or numba."""
    for function in COMPILED:
        register_jitable(forceinline=True)(function)
    options = {"error_model": "numpy", "boundscheck": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    function = njit([types.int64(types.int64)], **options)(sum_records)
    (text,) = function.inspect_llvm().values()
    module = binding.parse_assembly(_FUNCTION_HEAD.sub(_WITH_FRAME, text))
    module.verify()
    needed = [each.name for each in module.functions if each.is_declaration and not each.name.startswith("llvm.")]
    ours = [each for each in module.functions if sum_records.__name__ in each.name]
    if needed or len(ours) != 1:
        raise RuntimeError(f"compiled code: expected one function that needs no others, found {len(ours)}, {needed}")
    ours[0].name = FUNCTION
    return bytes(machine().emit_object(module))


def main() -> None:
    """Compile the code, and keep it, unless another process does."""
    os.nice(_NICE)
    name = code_name()
    with code_cache.alone(name) as alone:
        if alone and code_cache.read(name) is None:
            code_cache.write(name, compiled())


if __name__ == "__main__":
    main()

"""Compiled code: for which processor, by which versions, and in this process. Needs llvmlite, not numba."""

from __future__ import annotations

import ctypes
import hashlib
from importlib import metadata, resources
from typing import TYPE_CHECKING

from llvmlite import binding

if TYPE_CHECKING:
    from wal3_core.hashing.calling import Function

_PACKAGES = ("llvmlite", "numba")
_SOURCES = ("building.py", "calling.py", "kernel.py", "target.py")
_FEATURES = binding.get_host_cpu_features()
# Words that a register holds, where it holds four or more; narrower registers are used in pairs.
LANES = 8 if _FEATURES.get("avx512f") else 4
# The name of the one function.
FUNCTION = "wal3_sum_records"
# The addresses of its result, of its errors, and of what it is to do.
_SIGNATURE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


def machine() -> binding.TargetMachine:
    """Return the machine that code is made for."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=_FEATURES.flatten(), opt=3, reloc="pic", codemodel="small"
    )


def code_name() -> str:
    """Return the name of the code in the cache: another one for other sources, versions, processors.

    A home directory may be shared by machines with different processors.
    """
    # The package may lie in an archive.
    folder = resources.files("wal3_core.hashing")
    digest = hashlib.sha256(b"\0".join(folder.joinpath(name).read_bytes() for name in _SOURCES))
    versions = [f"{package} {metadata.version(package)}" for package in _PACKAGES]
    host = (binding.get_default_triple(), binding.get_host_cpu_name(), _FEATURES.flatten())
    digest.update("\0".join([*versions, *host]).encode())
    return f"sha3-{digest.hexdigest()[:32]}.code"


def load(code: bytes) -> Function:
    """Load an object file, and return its function."""
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine())
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    function = _SIGNATURE(engine.get_function_address(FUNCTION))
    # The code must stay as long as a thread may run it, also one that the interpreter's end finds at it.
    engine.detach()
    return function

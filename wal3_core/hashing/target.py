"""What code is compiled for: this machine's processor, and by which versions. Needs llvmlite, not numba."""

from __future__ import annotations

import hashlib
from importlib import metadata, resources

from llvmlite import binding

_PACKAGES = ("llvmlite", "numba")
_SOURCES = ("building.py", "intrinsics.py", "kernel.py", "layout.py", "target.py")
_FEATURES = binding.get_host_cpu_features()
# As many words as a register holds, where it holds four or more; narrower registers are used in pairs.
LANES = 8 if _FEATURES.get("avx512f") else 4
# The name of the one function.
FUNCTION = "wal3_sum_records"


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
    digest = hashlib.sha256(b"\0".join(_source(name) for name in _SOURCES))
    versions = [f"{package} {metadata.version(package)}" for package in _PACKAGES]
    host = (binding.get_default_triple(), binding.get_host_cpu_name(), _FEATURES.flatten())
    digest.update("\0".join([*versions, *host]).encode())
    return f"sha3-{digest.hexdigest()[:32]}.code"


def _source(name: str) -> bytes:
    # The package may lie in an archive.
    return resources.files("wal3_core.hashing").joinpath(name).read_bytes()

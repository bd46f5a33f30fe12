"""The packages of the library's extras, for errors about a missing one."""

from __future__ import annotations

# As in pyproject.toml; a test compares them.
PACKAGES = {
    "az": ("obstore>=0.12",),
    "cli": ("click>=8.4,<9", "rich>=15"),
    "fast": ("llvmlite>=0.50,<1", "numba>=0.68,<1"),
    "feed": ("msgpack>=1.1,<2",),
    "gs": ("obstore>=0.12",),
    "metrics": ("opentelemetry-api>=1.45,<2",),
    "queue": ("fastapi>=0.165,<1", "starlette>=1.10,<2", "uvicorn>=0.54,<1"),
    "s3": ("boto3>=1.44,<2", "obstore>=0.12"),
    "spark": ("pandas>=2.3.3,<3", "pyspark>=4.3,<5"),
}


def missing(package: str, extra: str) -> str:
    """Say that a package of an extra is missing, and what installs it: also where no index has this library."""
    named = " ".join(f"'{each}'" for each in PACKAGES[extra])
    return f"expected the package {package}, found that it is not installed: pip install {named} (wal3's extra {extra})"

"""The platforms, and the choice among them."""

from typing import TYPE_CHECKING

from octavo.base.errors import ConfigError
from octavo.base.registry import Registry

if TYPE_CHECKING:
    from octavo.platform.base import Platform

PLATFORMS = Registry(
    "platform",
    {
        "cpu": "octavo.platform.cpu:CpuPlatform",
        "cuda": "octavo.platform.cuda:CudaPlatform",
    },
)


def select(device: str = "auto") -> "Platform":
    """The platform by name; ``auto`` takes a GPU if torch finds one.

    Raises UnknownName for a name without a platform, ConfigError when the asked device is not there.
    """
    if device == "auto":
        device = "cpu" if PLATFORMS.get("cuda").missing() else "cuda"
    kind = PLATFORMS.get(device)
    missing = kind.missing()
    if missing:
        raise ConfigError(f"device {device!r} cannot be used: {missing}")
    platform: Platform = kind()
    return platform

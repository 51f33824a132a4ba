"""One part of a report about a machine."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Section:
    """Facts in order, and two kinds of trouble, each said with what to do about it.

    `failures`: no server starts here, or none can use the GPU that is here. `warnings`: it works, but less well.
    """

    title: str
    facts: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

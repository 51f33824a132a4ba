"""One part of a report about a machine."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Section:
    """Facts in order, and advice: each a trouble and what to do about it."""

    title: str
    facts: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

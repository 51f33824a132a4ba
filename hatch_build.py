"""Compiles the CPU kernels as part of the package's build. Without a compiler the package is built without them."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("octavo", "kernels", "cpu")


class KernelBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """hatchling calls `initialize` before it collects the wheel's files; an editable install builds in place too."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        builder = _builder(root / FOLDER / "build.py")
        try:
            library = builder.up_to_date(root / FOLDER) or builder.build(root / FOLDER)
        except builder.BuildError as error:
            self.app.display_warning(f"Octavo's CPU kernels are left out, models will run slowly on a CPU: {error}")
            return
        build_data["artifacts"].append(f"/{FOLDER.as_posix()}/{library.name}")
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def _builder(path: Path) -> ModuleType:
    """build.py by its path: the package itself needs torch, which a build has not."""
    spec = importlib.util.spec_from_file_location("octavo_kernels_build", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

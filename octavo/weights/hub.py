"""Model repositories on the Hugging Face hub, by huggingface_hub. No torch.

The revision is resolved to a commit once, and every file comes from that commit. Only what Octavo reads is fetched:
never Python files, never pickle. The token (HF_TOKEN) goes to the hub's own host only.
"""

import logging
import os
from pathlib import Path, PurePosixPath

from octavo.base.errors import ConfigError
from octavo.weights.fetch_heads import NoRanges, fetch_heads
from octavo.weights.fetch_hub import hub_endpoint, offline
from octavo.weights.folder import INDEX, TOKENIZER_FILES
from octavo.weights.guard import PICKLE_SUFFIXES

log = logging.getLogger("octavo.weights")

TIMEOUT_SECONDS = 10.0
CONFIG_FILES = ("config.json", "generation_config.json", *TOKENIZER_FILES)


def fetch_repo(
    repo: str, *, file: str | None = None, revision: str | None = None, download_dir: str | None = None,
    weights: bool = True, heads: Path | None = None,
) -> Path:  # fmt: skip
    """A local folder with the repository's model, or the path of one .gguf file of it.

    `file` is a .gguf file's name, or a part of it that only one has (``Q4_K_M``); empty takes the only one. Without
    `weights` only configs and tokenizer come. `heads`: a folder for the header of a .gguf file, which then comes alone
    where the file is not here yet. Raises ConfigError.
    """
    if offline():
        return _cached(repo, file, revision, download_dir, "HF_HUB_OFFLINE is set")
    try:
        commit, names = _list(repo, revision)
    except ConnectionError as error:
        return _cached(repo, file, revision, download_dir, str(error))
    wanted = choose_files(repo, names, file, weights)
    if heads is not None and wanted[0].endswith(".gguf") and not _is_here(repo, commit, wanted, download_dir):
        try:
            return fetch_heads(repo, commit, wanted, heads)
        except NoRanges:
            log.info("the hub sends no part of a file alone: all of it is fetched")
    log.info("%s at commit %s: %d files", repo, commit, len(wanted))
    folder = _snapshot(repo, commit, wanted, download_dir)
    _remember(folder, revision or "main", commit)
    return folder / wanted[0] if wanted[0].endswith(".gguf") else folder


def choose_files(repo: str, names: list[str], file: str | None, weights: bool) -> list[str]:
    """Which files of a repository's root to fetch. A GGUF model comes alone, its first part first."""
    top = sorted(name for name in names if "/" not in name)
    if not weights:
        small = [name for name in top if name in CONFIG_FILES]
        if not small and any(name.endswith(".gguf") for name in names):
            return _gguf_files(repo, names, "")
        if not small:
            raise ConfigError(f"{repo} holds no config or tokenizer files")
        return small
    if file is not None:
        return _gguf_files(repo, names, file)
    configs = [name for name in top if name in CONFIG_FILES]
    safetensors = [name for name in top if name.endswith(".safetensors")]
    model = [name for name in safetensors if name.startswith("model")]
    if model or safetensors:
        return configs + (model or safetensors) + ([INDEX] if INDEX in top else [])
    if any(name.endswith(".gguf") for name in names):
        return _gguf_files(repo, names, "")
    if any(PurePosixPath(name).suffix in PICKLE_SUFFIXES for name in top):
        raise ConfigError(f"{repo} holds only pickle weights, which can run code when opened; Octavo reads none")
    raise ConfigError(f"{repo} holds no weights (*.safetensors or *.gguf)")


def _gguf_files(repo: str, names: list[str], wanted: str) -> list[str]:
    ggufs = sorted(name for name in names if name.endswith(".gguf") and "mmproj" not in name and ".." not in name)
    if wanted in ggufs:
        found = [wanted]
    else:
        found = [name for name in ggufs if wanted.lower() in name.lower()]
    groups: dict[str, list[str]] = {}
    for name in found:
        stem, part, _ = name.partition("-00")  # name-00001-of-00003.gguf
        groups.setdefault(stem if part and "-of-" in name else name, []).append(name)
    if len(groups) != 1:
        have = ", ".join(ggufs[:12]) + (", ..." if len(ggufs) > 12 else "")
        fault = f"holds {len(groups)} GGUF files" if groups else f"holds no GGUF file {wanted!r}"
        raise ConfigError(f"{repo} {fault}; name one as {repo}:FILE out of {have or 'none'}")
    (files,) = groups.values()
    return files


def _list(repo: str, revision: str | None) -> tuple[str, list[str]]:
    """Commit and file names of a repository. Raises ConnectionError if the hub does not answer."""
    import httpx
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        info = HfApi(endpoint=hub_endpoint()).model_info(repo, revision=revision, timeout=TIMEOUT_SECONDS)
    except GatedRepoError:
        raise ConfigError(f"{repo} asks for its terms to be accepted on the hub, and for a token in HF_TOKEN") from None
    except RepositoryNotFoundError:
        raise ConfigError(
            f"{repo!r} is neither a local path nor a public model on the hub; a private one needs HF_TOKEN"
        ) from None
    except RevisionNotFoundError:
        raise ConfigError(f"{repo} has no revision {revision!r}") from None
    except HFValidationError as error:
        raise ConfigError(f"{repo!r} is no hub name: {str(error).splitlines()[0][:160]}") from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        if 400 <= status < 500:
            raise ConfigError(f"the hub answered {status} for {repo}") from None
        raise ConnectionError(f"the hub answered {status}") from None
    except (httpx.HTTPError, OSError, OfflineModeIsEnabled) as error:
        raise ConnectionError(f"no answer from {hub_endpoint()} ({type(error).__name__})") from None
    return str(info.sha), [sibling.rfilename for sibling in info.siblings or []]


def _snapshot(repo: str, commit: str, files: list[str], download_dir: str | None) -> Path:
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        folder = snapshot_download(
            repo,
            revision=commit,
            allow_patterns=[_literal(name) for name in files],
            cache_dir=_cache_dir(download_dir),
            endpoint=hub_endpoint(),
            etag_timeout=TIMEOUT_SECONDS,
        )
    except (httpx.HTTPError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise ConfigError(f"fetching {repo} broke off; run again to go on ({reason})") from None
    return Path(str(folder))


def _is_here(repo: str, commit: str, files: list[str], download_dir: str | None) -> bool:
    """Whether an earlier run fetched them whole."""
    from huggingface_hub import try_to_load_from_cache

    cache = _cache_dir(download_dir)
    return all(isinstance(try_to_load_from_cache(repo, name, cache, revision=commit), str) for name in files)


def _remember(folder: Path, revision: str, commit: str) -> None:
    """Note the branch's commit as the hub's cache does, so that a start without the hub finds it by its name."""
    if revision == commit or ".." in revision:
        return
    ref = folder.parent.parent / "refs" / revision  # folder is .../snapshots/<commit>
    try:
        ref.parent.mkdir(parents=True, exist_ok=True)
        ref.write_text(commit)
    except OSError as error:
        log.debug("cannot note %s: %s", ref, error)


def _literal(name: str) -> str:
    """A file name as a pattern that matches it alone."""
    return "".join(f"[{char}]" if char in "*?[" else char for char in name)


def _cached(repo: str, file: str | None, revision: str | None, download_dir: str | None, why: str) -> Path:
    """What an earlier run fetched, when the hub cannot be asked."""
    from huggingface_hub import snapshot_download

    try:
        found = snapshot_download(repo, revision=revision, cache_dir=_cache_dir(download_dir), local_files_only=True)
    except (OSError, ValueError) as error:
        # The library misses the files that were never wanted; those that are, are checked when they are read.
        found = getattr(error, "snapshot_path", "")
    if not found:
        raise ConfigError(f"{repo!r} is neither a local path nor a fetched model, and the hub cannot be asked: {why}")
    folder = Path(str(found))
    log.info("%s: using the fetched copy at %s, since %s", repo, folder, why)
    names = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file()]
    has_safetensors = any(name.endswith(".safetensors") for name in names)
    if file is not None or (not has_safetensors and any(name.endswith(".gguf") for name in names)):
        return folder / _gguf_files(repo, names, file or "")[0]
    return folder


def _cache_dir(download_dir: str | None) -> str | None:
    return os.path.expanduser(download_dir) if download_dir else None

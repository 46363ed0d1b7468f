"""Fetching released weights from the Hugging Face hub: pinned, safetensors only."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

from kronos_core.model.files import CONFIG_FILE, WEIGHTS_FILE, BundleError

FILES = (CONFIG_FILE, WEIGHTS_FILE)
# A commit for every release whose commit we have seen; the others follow their main branch and
# the commit that was fetched is recorded with the model.
PINNED_REVISIONS = {
    "NeoQuasar/Kronos-small": "901c26c1332695a2a8f243eb2f37243a37bea320",
    "NeoQuasar/Kronos-Tokenizer-base": "0e0117387f39004a9016484a186a908917e22426",
}
_TIMEOUT_SECONDS = 10
_CHUNK_BYTES = 1 << 20
"""How often progress is told; the client's own 10 MiB look like a standstill on a slow line."""

Progress = Callable[[int, int], None]
"""Takes (bytes here, bytes in all); raising there ends a download."""


def fetch_repository(repo: str, revision: str | None = None) -> Path:
    """Folder in the hub's local cache with config.json and model.safetensors of `repo`.

    Raises BundleError when `repo` is neither a folder nor a reachable repository.
    """
    if repo.count("/") != 1 or repo.startswith((".", "/", "~")):
        raise BundleError(
            f"there is no model folder {repo}, and it is not a Hugging Face id either"
        )
    paths = [Path(_ask(repo, file, revision=revision)) for file in FILES]
    return paths[-1].parent


def fetch_into(parts: Mapping[Path, str], progress: Progress | None = None) -> None:
    """Download the two files of each repository into its folder.

    What ``progress`` raises ends the download and passes through; BundleError when a repository
    cannot be reached.
    """
    tell = progress or (lambda _done, _total: None)
    wanted = [(repo, file, folder) for folder, repo in parts.items() for file in FILES]
    sizes = [
        int(_ask(repo, file, local_dir=folder, dry_run=True).file_size)
        for repo, file, folder in wanted
    ]
    done, total = 0, sum(sizes)
    for (repo, file, folder), size in zip(wanted, sizes, strict=True):
        _ask(repo, file, local_dir=folder, tqdm_class=partial(_Counter, tell, done, total))
        done += size
        tell(done, total)  # also when the file lay in the hub's cache and nothing was counted


def _ask(repo: str, file: str, *, revision: str | None = None, **options: Any) -> Any:
    """One call of the hub's client, its failures in our words."""
    from huggingface_hub import constants, hf_hub_download  # slow to import, needed here alone

    # Over Xet the client downloads in threads of a library that nothing we raise can end.
    constants.HF_HUB_DISABLE_XET = True
    constants.DOWNLOAD_CHUNK_SIZE = _CHUNK_BYTES
    try:
        return hf_hub_download(
            repo,
            file,
            revision=revision or PINNED_REVISIONS.get(repo, "main"),
            etag_timeout=_TIMEOUT_SECONDS,
            **options,
        )
    except _Stopped as stopped:
        raise stopped.reason from None
    except Exception as error:  # the hub client raises many kinds, all meaning "not here"
        raise BundleError(_by_hand(repo, file, error)) from error


class _Stopped(Exception):  # noqa: N818 - not an error
    """Carries what a progress callback raised past the failures of the client."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


class _Counter:
    """Stands in for the client's progress bar and tells ``tell`` of the bytes, after ``before``."""

    def __init__(
        self, tell: Progress, before: int, total: int, /, *, initial: int = 0, **_display: Any
    ) -> None:
        self._tell, self._done, self._total = tell, before + initial, total

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, count: int) -> None:
        """Counts bytes, fewer than none when the client starts a file anew."""
        self._done += count
        try:
            self._tell(self._done, self._total)
        except Exception as reason:
            raise _Stopped(reason) from reason


def _by_hand(repo: str, file: str, error: Exception) -> str:
    return (
        f"could not fetch {file} of {repo} ({type(error).__name__}). Check the connection; or "
        f"place the files by hand: on another machine download {' and '.join(FILES)} from the "
        f"page of {repo} on Hugging Face, and put them into a folder. A bundle folder holds "
        "tokenizer/ and predictor/ with these files in each; import that folder or load it by path."
    )

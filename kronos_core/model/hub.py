"""Fetching released weights from the Hugging Face hub: pinned, safetensors only."""

from collections.abc import Callable
from pathlib import Path

from kronos_core.model.files import CONFIG_FILE, WEIGHTS_FILE, BundleError

FILES = (CONFIG_FILE, WEIGHTS_FILE)
# A commit for every release whose commit we have seen; the others follow their main branch and
# the commit that was fetched is recorded with the model.
PINNED_REVISIONS = {
    "NeoQuasar/Kronos-small": "901c26c1332695a2a8f243eb2f37243a37bea320",
    "NeoQuasar/Kronos-Tokenizer-base": "0e0117387f39004a9016484a186a908917e22426",
}
_TIMEOUT_SECONDS = 10


def fetch_repository(repo: str, revision: str | None = None) -> Path:
    """Folder in the hub's local cache with config.json and model.safetensors of `repo`.

    Raises BundleError when `repo` is neither a folder nor a reachable repository.
    """
    if repo.count("/") != 1 or repo.startswith((".", "/", "~")):
        raise BundleError(
            f"there is no model folder {repo}, and it is not a Hugging Face id either"
        )
    return _download(repo, revision, None, None)


def fetch_into(repo: str, folder: Path, progress: Callable[[str], None] | None = None) -> Path:
    """Download the two files of `repo` into `folder`; progress is told each file's name."""
    return _download(repo, None, folder, progress)


def _download(
    repo: str, revision: str | None, folder: Path | None, progress: Callable[[str], None] | None
) -> Path:
    from huggingface_hub import hf_hub_download  # slow to import, needed here alone

    path = Path()
    for file in FILES:
        if progress is not None:
            progress(f"{repo}/{file}")
        try:
            path = Path(
                hf_hub_download(
                    repo,
                    file,
                    revision=revision or PINNED_REVISIONS.get(repo, "main"),
                    local_dir=folder,
                    etag_timeout=_TIMEOUT_SECONDS,
                )
            )
        except Exception as error:  # the hub client raises many kinds, all meaning "not here"
            raise BundleError(_by_hand(repo, file, error)) from error
    return path.parent


def _by_hand(repo: str, file: str, error: Exception) -> str:
    return (
        f"{file} of {repo} could not be fetched ({type(error).__name__}). Check the connection; or "
        f"place the files by hand: on another machine download {' and '.join(FILES)} from the "
        f"page of {repo} on Hugging Face, and put them into a folder. A bundle folder holds "
        "tokenizer/ and predictor/ with these files in each; import that folder or load it by path."
    )

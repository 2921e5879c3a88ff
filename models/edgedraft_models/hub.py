"""Download a safetensors model from the Hugging Face hub into the hub's own cache, where other tools find it too."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from huggingface_hub import _CACHED_NO_EXIST, constants, hf_hub_download, try_to_load_from_cache
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from tqdm import tqdm

from edgedraft.errors import ModelFormatError, ModelNotFound, ModelSourceError
from edgedraft_models.hf_source import INDEX, SINGLE, shard_names
from edgedraft_models.progress import Progress
from edgedraft_models.store import require_space, writing_to

_NEEDED = ("config.json", "tokenizer.json", "tokenizer_config.json")
_OPTIONAL = ("generation_config.json", "chat_template.jinja")
_CACHE_SETTING = "HF_HOME"

# The library has changed its HTTP client more than once; its own error always derives from the client's root error.
_NETWORK_ERRORS: tuple[type[Exception], ...] = HfHubHTTPError.__bases__


def download_snapshot(repository: str, revision: str, endpoint: str | None, progress: Progress, stage: str) -> Path:
    """Get the files of a model that the converter reads, one after the other.

    What is in the hub's cache already is not downloaded again, and an interrupted download goes on where it stopped.
    Without a network a model that is in the cache whole is still found.

    Args:
        repository: Id on the hub.
        revision: A branch, tag or commit.
        endpoint: Address of a mirror, or None.
        progress: Told how far each file is.
        stage: What to call this stage there; the file's name is added.

    Returns:
        The directory with the files.

    Raises:
        ModelNotFound: There is no such repository or revision, or it may not be read.
        ModelFormatError: A file that is needed is not in it.
        ModelSourceError: The hub cannot be reached or failed.
        DiskFull: There is no room for a file.
    """

    def get(name: str, commit: str) -> Path:
        bar = _bar_class(progress, f"{stage}: {name}")
        path = hf_hub_download(repository, name, revision=commit, endpoint=endpoint, tqdm_class=bar)
        return Path(path)

    def get_optional(name: str, commit: str) -> Path | None:
        if try_to_load_from_cache(repository, name, revision=commit) is _CACHED_NO_EXIST:
            return None
        try:
            return get(name, commit)
        except LocalEntryNotFoundError:
            raise
        except EntryNotFoundError:
            return None

    with writing_to(Path(constants.HF_HUB_CACHE), _CACHE_SETTING):
        try:
            folder = get(_NEEDED[0], revision).parent
            commit = folder.name  # the cache names a snapshot after its commit: all files shall be of the same
            for name in _NEEDED[1:]:
                get(name, commit)
            for name in _OPTIONAL:
                get_optional(name, commit)
            index = get_optional(INDEX, commit)
            for name in shard_names(index) if index else [SINGLE]:
                get(name, commit)
        except HFValidationError as error:
            raise ModelNotFound(f"{repository!r} is no id of the Hugging Face hub: {error}") from error
        except GatedRepoError as error:
            raise ModelNotFound(
                f"{repository} wants its licence accepted on the hub and a login (`hf auth login`)"
            ) from error
        except (RepositoryNotFoundError, RevisionNotFoundError) as error:
            raise ModelNotFound(
                f"{repository} at {revision} is not on the hub, or private; check the id, or log in (`hf auth login`)"
            ) from error
        except LocalEntryNotFoundError as error:
            raise ModelSourceError(
                f"{repository}: the Hugging Face hub cannot be reached and the model is not in its cache; "
                "check the network, or give a local directory or another source"
            ) from error
        except EntryNotFoundError as error:
            raise ModelFormatError(
                f"{repository} lacks a file that is needed ({error}); a model needs safetensors and a tokenizer.json"
            ) from error
        except _NETWORK_ERRORS as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # of the disk, not of the network
            raise ModelSourceError(f"{repository}: the Hugging Face hub failed ({error}); try again later") from error
    return folder


def _bar_class(progress: Progress, stage: str) -> type[tqdm[Any]]:
    """A progress bar that draws nothing and reports to `progress`."""

    class Bar(tqdm):  # type: ignore[misc]
        monitor_interval = 0

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **{**kwargs, "file": io.StringIO(), "disable": False})
            if self.total:
                require_space(Path(constants.HF_HUB_CACHE), int(self.total - self.n), _CACHE_SETTING)

        def update(self, n: float | None = 1) -> bool | None:
            shown: bool | None = super().update(n)
            progress(stage, int(self.n), int(self.total or self.n), "bytes")
            return shown

    return Bar

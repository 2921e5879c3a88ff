"""Models from the Hugging Face hub, with its real library against a stand-in for the hub on loopback."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from edgedraft.errors import DiskFull, ModelFormatError, ModelNotFound, ModelSourceError
from edgedraft_models.progress import silent
from edgedraft_models.sources import HubSource

COMMIT = "a" * 40


class Hub:
    """A repository `owner/tiny` of one commit."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.downloads: list[str] = []
        self.refusal: tuple[int, str] | None = None  # status and the hub's error code, for every request
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                prefix, _, name = self.path.partition("/resolve/")
                revision, _, name = name.partition("/")
                status, code = hub.refusal or (200, "")
                if not hub.refusal and prefix != "/owner/tiny":
                    status, code = 404, "RepoNotFound"
                elif not hub.refusal and revision not in ("main", COMMIT):
                    status, code = 404, "RevisionNotFound"
                elif not hub.refusal and name not in hub.files:
                    status, code = 404, "EntryNotFound"
                body = hub.files[name] if status == 200 else b""
                self.send_response(status)
                if code:
                    self.send_header("X-Error-Code", code)
                self.send_header("X-Repo-Commit", COMMIT)
                self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command == "GET":
                    hub.downloads.append(name)
                    self.wfile.write(body)

            do_GET = do_HEAD

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.source = HubSource("owner/tiny", endpoint=f"http://127.0.0.1:{self.server.server_port}")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_tiny: Callable[..., Any]) -> Iterator[Hub]:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    hub = Hub()
    folder = make_tiny().write_hf(tmp_path / "original", shards=2)
    hub.files = {file.name: file.read_bytes() for file in folder.iterdir()}
    hub.files["pytorch_model.bin"] = b"not wanted"
    thread = threading.Thread(target=hub.server.serve_forever, args=(0.01,))
    thread.start()
    yield hub
    hub.server.shutdown()
    thread.join()
    hub.server.server_close()


def test_all_that_is_needed_is_downloaded_once(hub: Hub, tmp_path: Path) -> None:
    reports: list[tuple[str, int, int, str]] = []
    folder = hub.source.fetch(tmp_path / "source", lambda *report: reports.append(report), "fetch tiny")
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == {
        name: body for name, body in hub.files.items() if name != "pytorch_model.bin"
    }
    weights = "model-00001-of-00002.safetensors"
    size = len(hub.files[weights])
    assert (f"fetch tiny: {weights}", size, size, "bytes") in reports

    downloads = list(hub.downloads)
    assert hub.source.fetch(tmp_path / "source", silent, "") == folder
    assert hub.downloads == downloads


def test_without_shards_the_one_file_is_taken(hub: Hub, tmp_path: Path, make_tiny: Callable[..., Any]) -> None:
    single = make_tiny().write_hf(tmp_path / "single")
    hub.files = {file.name: file.read_bytes() for file in single.iterdir()}
    assert (hub.source.fetch(tmp_path, silent, "") / "model.safetensors").is_file()


def test_without_a_network_the_cache_will_do(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # the library waits between its tries
    folder = hub.source.fetch(tmp_path, silent, "")
    offline = HubSource("owner/tiny", endpoint="http://127.0.0.1:9")
    assert offline.fetch(tmp_path, silent, "") == folder


def test_without_a_network_and_a_cache_it_says_so(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    offline = HubSource("owner/tiny", endpoint="http://127.0.0.1:9")
    with pytest.raises(ModelSourceError, match=r"owner/tiny: the Hugging Face hub cannot be reached.*local directory"):
        offline.fetch(tmp_path, silent, "")


@pytest.mark.parametrize("source", [{"repository": "owner/none"}, {"repository": "owner/tiny", "revision": "v9"}])
def test_what_is_not_on_the_hub_is_named(hub: Hub, tmp_path: Path, source: dict[str, str]) -> None:
    with pytest.raises(ModelNotFound, match=f"{source['repository']} at .* is not on the hub, or private"):
        HubSource(**source, endpoint=hub.source.endpoint).fetch(tmp_path, silent, "")


def test_gated_model_says_what_to_do(hub: Hub, tmp_path: Path) -> None:
    hub.refusal = (403, "GatedRepo")
    with pytest.raises(ModelNotFound, match=r"licence accepted.*hf auth login"):
        hub.source.fetch(tmp_path, silent, "")


def test_id_that_is_none(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="'a/b/c' is no id"):
        HubSource("a/b/c", endpoint=hub.source.endpoint).fetch(tmp_path, silent, "")


@pytest.mark.parametrize("missing", ["tokenizer.json", "model-00002-of-00002.safetensors"])
def test_file_that_the_repository_lacks(hub: Hub, tmp_path: Path, missing: str) -> None:
    del hub.files[missing]
    with pytest.raises(ModelFormatError, match="owner/tiny lacks a file that is needed"):
        hub.source.fetch(tmp_path, silent, "")


def test_optional_files_may_be_missing(hub: Hub, tmp_path: Path) -> None:
    del hub.files["generation_config.json"]
    assert not (hub.source.fetch(tmp_path, silent, "") / "generation_config.json").exists()


@pytest.mark.filterwarnings("ignore:Not enough free disk space:UserWarning")
def test_too_little_room_is_seen_before_the_download(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgedraft_models.store.shutil.disk_usage", lambda path: type("Usage", (), {"free": 100})())
    with pytest.raises(DiskFull, match="HF_HOME"):
        hub.source.fetch(tmp_path, silent, "")

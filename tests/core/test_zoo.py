"""Bundles come from folders and names, strictly, and say what is wrong otherwise."""

import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file

from kronos_core import Bundle, BundleError, Kronos, KronosTokenizer, load_bundle, save_bundle
from kronos_core.model import hub, zoo
from tests.core.models import tiny_bundle, tiny_predictor, tiny_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_bundle(tiny_bundle(), tmp_path / "tiny")
    return tmp_path / "tiny"


def test_saved_and_loaded_again_it_is_equal(folder: Path) -> None:
    again = load_bundle(folder, device="cpu")
    original = tiny_bundle()
    assert again.hash == original.hash
    assert (again.max_context, again.s2_rotary) == (64, "position")
    assert again.predictor.s2_rotary == "position"
    assert not again.predictor.training
    assert not again.tokenizer.training
    assert again.parameters == sum(p.numel() for p in original.predictor.parameters())


def test_saving_again_replaces_the_folder_and_leaves_nothing_else(folder: Path) -> None:
    (folder / "old.txt").write_text("old")
    save_bundle(tiny_bundle(seed=1), folder)
    assert load_bundle(folder, device="cpu").hash == tiny_bundle(seed=1).hash
    assert {p.name for p in folder.iterdir()} == {"tokenizer", "predictor", "bundle.json"}
    assert [p.name for p in folder.parent.iterdir()] == ["tiny"]


def test_without_bundle_json_it_is_a_release(folder: Path) -> None:
    (folder / "bundle.json").unlink()
    bundle = load_bundle(folder, device="cpu")
    assert (bundle.max_context, bundle.s2_rotary) == (512, "origin")
    bundle = load_bundle(folder, device="cpu", max_context=100, s2_rotary="position")
    assert (bundle.max_context, bundle.predictor.s2_rotary) == (100, "position")


def test_the_hash_follows_the_weights() -> None:
    bundle = tiny_bundle()
    with torch.no_grad():
        bundle.predictor.head.proj_s2.bias[0] += 1e-3
    assert zoo.hash_weights(bundle.tokenizer, bundle.predictor) != bundle.hash


def test_parts_load_alone(folder: Path) -> None:
    tokenizer = KronosTokenizer.from_pretrained(folder / "tokenizer")
    predictor = Kronos.from_pretrained(str(folder / "predictor"))
    assert zoo.hash_weights(tokenizer, predictor) == tiny_bundle().hash


def _spoil_json(folder: Path) -> None:
    (folder / "predictor" / "config.json").write_text("{")


def _unknown_setting(folder: Path) -> None:
    path = folder / "predictor" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"n_experts": 8}))


def _missing_setting(folder: Path) -> None:
    path = folder / "predictor" / "config.json"
    config = json.loads(path.read_text())
    del config["d_model"]
    path.write_text(json.dumps(config))


def _missing_tensor(folder: Path) -> None:
    path = folder / "predictor" / "model.safetensors"
    weights = load_file(path)
    del weights["norm.weight"]
    save_file(weights, path)


def _wrong_shape(folder: Path) -> None:
    path = folder / "tokenizer" / "model.safetensors"
    weights = load_file(path)
    weights["head.bias"] = torch.zeros(5)
    save_file(weights, path)


def _pickle_instead(folder: Path) -> None:
    (folder / "tokenizer" / "model.safetensors").write_bytes(b"\x80\x04N.")


def _no_weights(folder: Path) -> None:
    (folder / "tokenizer" / "model.safetensors").unlink()


def _no_predictor(folder: Path) -> None:
    (folder / "predictor").rename(folder / "model")


def _other_tokenizer(folder: Path) -> None:
    tiny_tokenizer(s1_bits=5).save_pretrained(folder / "tokenizer")


def _bad_context(folder: Path) -> None:
    (folder / "bundle.json").write_text(json.dumps({"max_context": "512"}))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_spoil_json, "config.json is not valid JSON"),
        (_unknown_setting, "unknown settings n_experts"),
        (_missing_setting, "d_model"),
        (_missing_tensor, "missing norm.weight"),
        (_wrong_shape, r"head.bias is \(5,\), expected \(6,\)"),
        (_pickle_instead, "not a readable safetensors file"),
        (_no_weights, "model.safetensors is missing"),
        (_no_predictor, "lacks predictor/"),
        (_other_tokenizer, "do not belong together"),
        (_bad_context, "max_context must be a whole number"),
    ],
)
def test_folders_that_do_not_fit(folder: Path, spoil: object, reason: str) -> None:
    spoil(folder)
    with pytest.raises(BundleError, match=reason):
        load_bundle(folder, device="cpu")


def test_names_that_are_not_known() -> None:
    with pytest.raises(BundleError, match="known names: kronos-nano"):
        load_bundle("kronos-huge")
    with pytest.raises(BundleError, match="no model folder"):
        Kronos.from_pretrained("/nowhere/at/all")
    with pytest.raises(ValueError, match='unknown device "tpu9"'):
        zoo.resolve_device("tpu9")
    with pytest.raises(ValueError, match="s2_rotary"):
        tiny_bundle(s2_rotary="middle")


def test_device_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoo, "_has_cuda", lambda: False)
    monkeypatch.setattr(zoo, "_has_mps", lambda: False)
    assert zoo.resolve_device("auto").type == "cpu"
    with pytest.raises(ValueError, match='"cuda" is not available'):
        zoo.resolve_device("cuda")
    monkeypatch.setattr(zoo, "_has_mps", lambda: True)
    assert zoo.resolve_device("auto").type == "mps"
    monkeypatch.setattr(zoo, "_has_cuda", lambda: True)
    assert zoo.resolve_device("auto").type == "cuda"


class FakeHub:
    """Stands for the hub's client: serves folders by repository, or fails as offline."""

    def __init__(self, repositories: dict[str, Path]) -> None:
        self.repositories = repositories
        self.asked: list[tuple[str, str, str]] = []

    def download(
        self,
        repo: str,
        file: str,
        *,
        revision: str,
        etag_timeout: int,
        local_dir: Path | None = None,
        dry_run: bool = False,
        tqdm_class: Callable[..., Any] | None = None,
    ) -> Any:
        self.asked.append((repo, file, revision))
        if repo not in self.repositories:
            raise ConnectionError("no route to host")
        source = self.repositories[repo] / file
        if dry_run:
            return SimpleNamespace(file_size=source.stat().st_size)
        if local_dir is None or tqdm_class is None:
            return str(source)
        local_dir.mkdir(parents=True, exist_ok=True)
        content = source.read_bytes()
        half = len(content) // 2
        with (
            (local_dir / file).open("wb") as target,
            tqdm_class(unit="B", total=len(content)) as bar,
        ):
            for piece in (content[:half], content[half:]):
                bar.update(len(piece))
                target.write(piece)
        return str(local_dir / file)


@pytest.fixture
def fake_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    client = FakeHub(
        {
            "NeoQuasar/Kronos-small": folder / "predictor",
            "NeoQuasar/Kronos-Tokenizer-base": folder / "tokenizer",
        }
    )
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", client.download)
    return client


def test_released_models_by_name(fake_hub: FakeHub) -> None:
    bundle = load_bundle("kronos-small", device="cpu")
    assert (bundle.name, bundle.max_context, bundle.s2_rotary) == ("kronos-small", 512, "origin")
    assert bundle.hash == tiny_bundle().hash
    assert {file for _, file, _ in fake_hub.asked} == {"config.json", "model.safetensors"}
    for repo, _, revision in fake_hub.asked:
        assert revision == hub.PINNED_REVISIONS[repo]
    assert bundle.provenance["revisions"] == hub.PINNED_REVISIONS


def test_download_into_a_folder(fake_hub: FakeHub, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    path = zoo.download(
        "kronos-small", tmp_path / "models" / "small", lambda *done: seen.append(done)
    )
    assert load_bundle(path, device="cpu").name == "kronos-small"
    sizes = [file.stat().st_size for file in path.glob("*/*") if file.name in hub.FILES]
    assert {total for _, total in seen} == {sum(sizes)}
    counted = [done for done, _ in seen]
    assert counted == sorted(counted)
    assert counted[-1] == sum(sizes)


def test_a_stopped_download_leaves_nothing(fake_hub: FakeHub, tmp_path: Path) -> None:
    class Enough(Exception):  # noqa: N818 - not an error
        pass

    def stop_in_the_middle(done: int, total: int) -> None:
        if done > total / 2:
            raise Enough

    with pytest.raises(Enough):
        zoo.download("kronos-small", tmp_path / "models" / "small", stop_in_the_middle)
    assert list((tmp_path / "models").iterdir()) == []


class Hub(BaseHTTPRequestHandler):
    """Serves every file of every repository as the hub does, with the same content."""

    content = b"x" * 4096

    def do_HEAD(self) -> None:
        self.send_response(200)
        for name, value in {
            "Content-Length": len(self.content),
            "ETag": '"abc"',
            "X-Repo-Commit": "0" * 40,
        }.items():
            self.send_header(name, str(value))
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(self.content)

    def log_message(self, format: str, *values: object) -> None:
        pass


@pytest.fixture
def served_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The hub's own client, talking to a server on this machine in pieces of a KiB."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    client = partial(huggingface_hub.hf_hub_download, endpoint=address)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", client)
    monkeypatch.setattr(hub, "_CHUNK_BYTES", 1024)
    yield
    server.shutdown()
    server.server_close()


def test_the_client_tells_of_the_bytes_and_can_be_stopped(served_hub: None, tmp_path: Path) -> None:
    parts = {tmp_path / part: f"somebody/{part}" for part in ("tokenizer", "predictor")}
    seen: list[int] = []
    hub.fetch_into(parts, lambda done, _total: seen.append(done))
    assert sorted(set(seen)) == list(range(1024, 4 * 4096 + 1, 1024))
    for folder in parts:
        assert {(folder / file).read_bytes() for file in hub.FILES} == {Hub.content}

    def stop(done: int, total: int) -> None:
        if done > 2048:
            raise KeyError("enough")

    elsewhere = {tmp_path / "elsewhere": "somebody/tokenizer"}
    with pytest.raises(KeyError, match="enough"):
        hub.fetch_into(elsewhere, stop)
    left = [
        path
        for path in (tmp_path / "elsewhere").rglob("*")
        if path.is_file() and path.stat().st_size >= 1024
    ]
    assert left == []


def test_offline_says_how_to_place_the_files(fake_hub: FakeHub, tmp_path: Path) -> None:
    for attempt in (
        lambda: load_bundle("kronos-base", device="cpu"),
        lambda: Kronos.from_pretrained("NeoQuasar/Kronos-base"),
        lambda: zoo.download("kronos-mini", tmp_path / "mini"),
    ):
        with pytest.raises(
            BundleError, match=r"place the files by hand.*tokenizer/ and predictor/"
        ):
            attempt()
    assert not (tmp_path / "mini").exists()


def test_only_releases_can_be_downloaded(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="choose one of kronos-mini, kronos-small, kronos-base"):
        zoo.download("kronos-nano", tmp_path / "nano")


def test_the_embedded_model_is_what_its_card_says() -> None:
    bundle = load_bundle("kronos-nano", device="cpu")
    assert bundle.max_context == zoo.ZOO["kronos-nano"].max_context
    assert bundle.parameters == zoo.ZOO["kronos-nano"].parameters
    card = (zoo.ASSETS / "kronos-nano" / "README.md").read_text(encoding="utf-8")
    assert f"{bundle.parameters:,} parameters" in card
    held_out = bundle.provenance["held_out"]
    assert f"{held_out['s1']:.3f}" in card
    uniform = bundle.predictor.config["s1_bits"] * 0.6931
    assert held_out["s1"] < 0.9 * uniform


def test_bundles_check_their_settings() -> None:
    with pytest.raises(BundleError, match="max_context"):
        Bundle(
            name="x",
            tokenizer=tiny_tokenizer(),
            predictor=tiny_predictor(),
            max_context=1,
            s2_rotary="origin",
        )

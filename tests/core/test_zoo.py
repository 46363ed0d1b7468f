"""Bundles come from folders and names, strictly, and say what is wrong otherwise."""

import json
from pathlib import Path

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
        self, repo: str, file: str, *, revision: str, local_dir: Path | None, etag_timeout: int
    ) -> str:
        self.asked.append((repo, file, revision))
        if repo not in self.repositories:
            raise ConnectionError("no route to host")
        source = self.repositories[repo] / file
        if local_dir is None:
            return str(source)
        local_dir.mkdir(parents=True, exist_ok=True)
        (local_dir / file).write_bytes(source.read_bytes())
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
    seen: list[str] = []
    path = zoo.download("kronos-small", tmp_path / "models" / "small", seen.append)
    assert len(seen) == 4
    assert load_bundle(path, device="cpu").name == "kronos-small"


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

"""The engine computes what the released implementation computes (fixtures/golden)."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from kronos_core import Bundle, Kronos, KronosTokenizer, load_bundle, sample_paths

GOLDEN = Path(__file__).parents[1] / "fixtures" / "golden"
SHAPES = json.loads((GOLDEN / "release_shapes.json").read_text())
TOLERANCE = 1e-5


@dataclass
class Golden:
    folder: Path
    bundle: Bundle
    expected: dict[str, np.ndarray]

    def tensor(self, name: str) -> torch.Tensor:
        return torch.from_numpy(self.expected[name])

    def check(self, name: str, value: Any) -> None:
        np.testing.assert_allclose(
            np.asarray(value.detach()), self.expected[name], rtol=0, atol=TOLERANCE, err_msg=name
        )

    @property
    def ids(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.tensor("s1_ids"), self.tensor("s2_ids")


@pytest.fixture(params=["tiny5", "tiny4_fixedte"])
def golden(request: pytest.FixtureRequest) -> Golden:
    folder = GOLDEN / request.param
    expected = dict(np.load(folder / "expected.npz"))
    return Golden(folder, load_bundle(folder, device="cpu"), expected)


@torch.no_grad()
def test_tokenizer(golden: Golden) -> None:
    tokenizer = golden.bundle.tokenizer
    x = golden.tensor("x")
    (coarse, fine), loss, codes, full_ids = tokenizer(x)
    golden.check("recon_s1_only", coarse)
    golden.check("recon", fine)
    golden.check("bsq_loss", loss)
    golden.check("quantized", codes)
    assert torch.equal(full_ids, golden.tensor("full_ids"))
    assert torch.equal(tokenizer.encode(x), full_ids)
    s1_ids, s2_ids = tokenizer.encode(x, half=True)
    assert torch.equal(s1_ids, golden.tensor("s1_ids"))
    assert torch.equal(s2_ids, golden.tensor("s2_ids"))
    golden.check("decode_half", tokenizer.decode([s1_ids, s2_ids], half=True))
    golden.check("decode_full", tokenizer.decode(full_ids))


@torch.no_grad()
@pytest.mark.parametrize("suffix", ["", "_nostamp"])
def test_teacher_forced_logits(golden: Golden, suffix: str) -> None:
    s1, s2 = golden.ids
    stamp = None if suffix else golden.tensor("stamp")[:, :-1]
    s1_logits, s2_logits = golden.bundle.predictor(
        s1[:, :-1], s2[:, :-1], stamp, use_teacher_forcing=True, s1_targets=s1[:, 1:]
    )
    golden.check(f"tf_s1_logits{suffix}", s1_logits)
    golden.check(f"tf_s2_logits{suffix}", s2_logits)


def test_losses_and_gradients(golden: Golden) -> None:
    model = golden.bundle.predictor
    s1, s2 = golden.ids
    stamp = golden.tensor("stamp")[:, :-1]
    logits = model(s1[:, :-1], s2[:, :-1], stamp, use_teacher_forcing=True, s1_targets=s1[:, 1:])
    targets = (s1[:, 1:], s2[:, 1:])
    losses = model.head.compute_loss(*logits, *targets)
    golden.check("loss", torch.stack(losses))
    masked = model.head.compute_loss(*logits, *targets, golden.tensor("pad_mask"))
    golden.check("loss_masked", torch.stack(masked))
    losses[0].backward()
    names = json.loads((golden.folder / "grad_names.json").read_text())
    parameters = dict(model.named_parameters())
    assert names == list(parameters)
    norms = [np.nan if p.grad is None else p.grad.norm().item() for p in parameters.values()]
    np.testing.assert_allclose(norms, golden.expected["grad_norms"], rtol=0, atol=TOLERANCE)


@torch.no_grad()
def test_staged_decoding(golden: Golden) -> None:
    model = golden.bundle.predictor
    s1, s2 = golden.ids
    s1_logits, hidden = model.decode_s1(s1[:, :-1], s2[:, :-1], golden.tensor("stamp")[:, :-1])
    golden.check("dec_s1_logits", s1_logits)
    golden.check("dec_context", hidden)
    pick = s1_logits[:, -1:].argmax(-1)
    assert torch.equal(pick, golden.tensor("dec_s1_pick"))
    golden.check("dec_s2_logits_last", model.decode_s2(hidden, pick)[:, -1])


@pytest.mark.parametrize("suffix", ["", "_slide"])
def test_greedy_forecast(golden: Golden, suffix: str) -> None:
    context, horizon, max_context = golden.expected[f"greedy_meta{suffix}"].tolist()
    bars = pd.read_csv(golden.folder / "bars.csv", parse_dates=["timestamps"])
    bundle = load_bundle(golden.folder, device="cpu", max_context=max_context)
    future = pd.DatetimeIndex(bars["timestamps"].iloc[context : context + horizon])
    forecast = sample_paths(bundle, bars.iloc[:context], horizon, 1, top_k=1, future=future)
    np.testing.assert_allclose(
        forecast.paths[0], golden.expected[f"greedy_forecast{suffix}"], rtol=TOLERANCE
    )


@pytest.mark.parametrize("name", SHAPES)
def test_names_and_shapes_of_the_releases(name: str) -> None:
    kind = KronosTokenizer if "tokenizer" in name else Kronos
    with torch.device("meta"):
        module = kind(**SHAPES[name]["config"])
    shapes = {key: list(tensor.shape) for key, tensor in module.state_dict().items()}
    assert shapes == SHAPES[name]["tensors"]
    assert sum(p.numel() for p in module.parameters()) == SHAPES[name]["parameters"]

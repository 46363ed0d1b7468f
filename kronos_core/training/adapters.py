"""What of a predictor is trained: frozen layers, LoRA adapters, dropout; and plain weights again.

peft puts its adapters into the modules in place, under other names in the state dict; the released
loader knows none of that, so what is saved is a copy with the adapters merged into the weights.
"""

from __future__ import annotations

import copy

from torch import nn

from kronos_core.model.kronos import Kronos
from kronos_core.model.layers import SelfAttention
from kronos_core.training.config import TrainingConfig


def trainable_copy(predictor: Kronos, config: TrainingConfig) -> Kronos:
    """A copy of the predictor with the config's adapters, frozen layers and dropout.

    Adapters start from the global random state, at no effect.

    Raises:
        ValueError: more frozen blocks than there are, or nothing left to train.
    """
    require_trainable(predictor, config)
    tuned = copy.deepcopy(predictor)
    tuned.s2_rotary = "position"
    if config.dropout is not None:
        _set_dropout(tuned, config.dropout)
    if config.lora is not None:
        _add_adapters(tuned, config)
    frozen: list[nn.Module] = list(tuned.transformer[: config.frozen_blocks])
    if config.freeze_embeddings:
        frozen += [tuned.embedding, tuned.time_emb]
    for module in frozen:
        module.requires_grad_(False)
    return tuned


def require_trainable(predictor: Kronos, config: TrainingConfig) -> None:
    """Raise ValueError where the config freezes what is not there or all that it trains."""
    blocks = len(predictor.transformer)
    if config.frozen_blocks > blocks:
        raise ValueError(
            f"frozen_blocks is {config.frozen_blocks}, but the model has {blocks} transformer "
            f"{'block' if blocks == 1 else 'blocks'}; choose {blocks} or fewer"
        )
    if config.lora is None or config.frozen_blocks < blocks:
        return
    if not {"q_proj", "k_proj", "v_proj", "out_proj"} & set(config.lora.targets):
        raise ValueError(
            f"all {blocks} blocks are frozen and the lora targets "
            f"{', '.join(config.lora.targets)} stand in blocks alone, so nothing is trained; "
            "freeze fewer blocks or add q_proj and v_proj"
        )


def plain_copy(predictor: Kronos) -> Kronos:
    """A copy without adapters: their change is added to the weights that they stand beside."""
    plain = copy.deepcopy(predictor)
    for name, module in list(plain.named_modules()):
        # Told by what it offers, so that a run without adapters never imports peft.
        if hasattr(module, "get_base_layer") and hasattr(module, "merge"):
            module.merge()
            parent, _, child = name.rpartition(".")
            setattr(plain.get_submodule(parent), child, module.get_base_layer())
    return plain.eval()


def _add_adapters(predictor: Kronos, config: TrainingConfig) -> None:
    from peft import LoraConfig, inject_adapter_in_model  # takes seconds, and few runs need it

    assert config.lora is not None
    settings = LoraConfig(
        r=config.lora.rank,
        lora_alpha=config.lora.alpha,  # type: ignore[arg-type]
        lora_dropout=config.lora.dropout,
        target_modules=list(config.lora.targets),
    )
    inject_adapter_in_model(settings, predictor)


def _set_dropout(predictor: Kronos, rate: float) -> None:
    """The dependency layer has none and keeps none."""
    modules = [predictor.token_drop, *predictor.transformer.modules()]
    for module in modules:
        if isinstance(module, nn.Dropout):
            module.p = rate
        if isinstance(module, SelfAttention):
            module.attn_dropout = rate

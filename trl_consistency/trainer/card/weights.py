"""What the model card says of the trained weights."""

from typing import Any

from accelerate.utils import is_peft_model

from ...models.quantization import quantization_of, words_of
from ...models.sharding import shape_of
from .words import in_words, safe


MERGED = "since merged into the whole weights of this model"


def trainable_in(model: Any) -> set[int]:
    """Returns the ids of a model's trainable parameters."""
    return {id(of) for of in model.parameters() if of.requires_grad}


def describe_weights(trainer: Any, trainable: set[int], trained: set[int]) -> dict[str, str]:
    """
    Returns the fact about what a trainer trains: the adapter, or the number of the model's own weights. `trainable` and `trained` are
    ids of parameters: of those that were so when the training began, and of those in a step.
    """
    model = trainer.model
    sizes = {id(of): shape_of(of).numel() for of in model.parameters()}
    number = sum(size for of, size in sizes.items() if of in trained)
    if is_peft_model(model):
        config = model.peft_config[model.active_adapters[0]]
        said = words_of(quantization_of(model))
        quantised = f", on weights {safe(said)}" if said else ""
        other = ", **on other weights than those of the base model above**" if trainer.base_is_another else ""
        whole = sum(size for of, size in sizes.items() if of in trainable | trained)
        left = f", {whole - number:,} of its {whole:,} weights not trained" if whole > number else ""
        adapter = _describe_adapter(model, config, trained, getattr(trainer.args, "disable_dropout", False))
        return {"Adapter": f"{adapter}{quantised}{left}{other}"}
    return {"Trained weights": f"{number:,} of {sum(sizes.values()):,}, no adapter"}


def trained_weights(trainer: Any) -> dict[str, str]:
    """
    Returns the fact about the weights that a trainer trained. It is that of the model that was trained: an adapter may have
    been merged into its base model since, and of the whole model nothing is trainable.
    """
    facts = dict(trainer.trained_weights)
    if "Adapter" in facts and not is_peft_model(trainer.model):
        facts["Adapter"] += f", {MERGED}"
    return facts


def _describe_adapter(model: Any, config: Any, trained: set[int], disable_dropout: bool) -> str:
    """Describes an adapter's kind and size, and the modules beside it of which weights are among the `trained` ones."""
    kind = str(getattr(config.peft_type, "value", config.peft_type))
    if kind == "LORA":
        kind = "DoRA" if config.use_dora else "LoRA"
    numbers = {"rank": getattr(config, "r", None), "alpha": getattr(config, "lora_alpha", None)}
    shape = "".join(f", {name} {size}" for name, size in numbers.items() if size is not None)
    if has_other_sizes(model, config):
        shape += " (others in some layers)"
    shape += ", rank-stabilised" if getattr(config, "use_rslora", False) else ""
    dropout = 0 if disable_dropout else getattr(config, "lora_dropout", None)
    shape += f", dropout {dropout:g}" if dropout else ""
    # Those that the model has: PEFT leaves out other names without a word.
    copied = [
        name.removesuffix(".modules_to_save")
        for name, module in model.named_modules()
        if name.endswith("modules_to_save") and any(id(of) in trained for of in module.parameters())
    ]
    named = getattr(config, "modules_to_save", None) or ()
    whole = sorted(safe(name) for name in named if any(of.endswith(name) for of in copied))
    tokens = getattr(config, "trainable_token_indices", None) or ()
    tokens = sum(map(len, tokens.values())) if isinstance(tokens, dict) else len(tokens)
    bias = getattr(config, "bias", "none")
    return (
        f"{kind}{shape}"
        + (f", and {in_words(whole)} trained whole" if whole else "")
        + (f", and the embeddings of {tokens:,} token(s)" if tokens else "")
        + (f", and biases ({safe(bias)})" if bias != "none" else "")
    )


def has_other_sizes(model: Any, config: Any) -> bool:
    """Whether some layers of an adapter have another rank or alpha than its config names. Patterns may match no layer."""
    if not (getattr(config, "rank_pattern", None) or getattr(config, "alpha_pattern", None)):
        return False
    adapter = model.active_adapters[0]
    sizes = (
        (own[adapter], getattr(config, size, own[adapter]))
        for layer in model.modules()
        for size in ("r", "lora_alpha", "alpha")
        if isinstance(own := getattr(layer, size, None), dict) and adapter in own
    )
    return any(own != of_config for own, of_config in sizes)

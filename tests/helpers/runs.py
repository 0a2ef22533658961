"""What small trainings have in common: their adapter, and what is compared of them."""

import torch


LORA = {"r": 4, "lora_alpha": 8, "lora_dropout": 0.0, "target_modules": "all-linear"}


def losses(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])


def trained_weights(trainer, **kwargs):
    trainer.train(**kwargs)
    return weights(trainer.model)

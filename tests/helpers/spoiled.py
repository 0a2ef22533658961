"""Writes to the reference's weights while a trainer trains."""

from transformers import TrainerCallback


class SpoilWeights(TrainerCallback):
    """Changes a weight of the base model before the first step."""

    def on_step_begin(self, args, state, control, model, **kwargs):
        if state.global_step == 0:
            model.get_base_model().model.embed_tokens.weight.data.add_(1e-3)

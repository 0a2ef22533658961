"""Hostile input: pairs."""

from datasets import Dataset

from tests.helpers.models import make_model, make_pairs, make_tokenizer
from tests.hostile_input.room import ANSWERED, PAIR, USER, Case


CASES: list[Case] = [
    Case(
        "swallowed cue",
        "A chat template that drops what tells the two prompts apart",
        "…row 0: the chat template leaves out or changes what message 0 …",
        lambda room: room.trainer(
            [{"clean_prompt": USER, "perturbed_prompt": [{"role": "system", "content": "It is B."}, *USER]}],
            processing_class=make_tokenizer("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"),
        ),
    ),
    Case(
        "overlong",
        "Rows over `max_length`",
        "`train_dataset`: 1 of 1 row(s) are longer than `max_length=8`: row 0 (… tokens). …Raise `max_length`, lower `max_completion_length` to at most 3, or leave those rows out with `overlong='drop'`.",
        lambda room: room.trainer([PAIR], {"max_length": 8, "max_completion_length": 4}),
    ),
    Case(
        "all overlong",
        "Rows over `max_length`, all to be left out",
        "`train_dataset`: 1 of 1 row(s) are longer than `max_length=8`: row 0 (… tokens). `overlong='drop'` would leave no row.",
        lambda room: room.rollouts([PAIR], {"max_length": 8, "overlong": "drop"}),
    ),
    Case(
        "nothing shared",
        "Prompts that share nothing that `act` could compare",
        "`train_dataset`: 1 of 1 pair(s) share nothing that could be compared: row 0. For `act`: end both prompts alike, or compare the answers, `act_tokens='completion'`. …",
        lambda room: room.trainer([{"clean_prompt": "a", "perturbed_prompt": "b"}], {"method": "act"}),
    ),
    Case(
        "shared text elsewhere",
        "`shared_text` that is in neither prompt",
        "`train_dataset`: 1 of 1 pair(s) share nothing that could be compared: row 0. …say what they share in a `shared_text` column. …",
        lambda room: room.trainer([PAIR | {"shared_text": "Berlin"}], {"method": "mlpct"}),
    ),
    Case(
        "fewer than a batch",
        "Fewer pairs than a batch of rollouts takes",
        "`train_dataset` has 2 row(s), fewer than the 4 prompts of one batch of rollouts (`num_generations` 2). Use smaller batches, or more rollouts a prompt.",
        lambda room: room.rollouts(make_pairs(2)),
    ),
    Case(
        "streamed without completions",
        "A stream without completions",
        "`train_dataset` is streamed and has no `completion` column, and a stream's clean prompts cannot be answered before training. Load it without streaming, or add the column.",
        lambda room: room.trainer(make_pairs(2, completion=False).to_iterable_dataset()),
    ),
    Case(
        "streamed and dropped",
        "Rows to be left out of a stream",
        "`train_dataset` is streamed, and `overlong='drop'` could not say how many of its rows are left out. Load it without streaming, or filter it yourself.",
        lambda room: room.rollouts(
            make_pairs(2).to_iterable_dataset(), {"max_length": 64, "overlong": "drop", "max_steps": 1}
        ),
    ),
    Case(
        "anchors without prompts",
        "Anchors without a `prompt` column",
        "`anchor_dataset` has no column `prompt`; its columns are `text`. Rename the column that holds the prompts (`dataset.rename_column`).",
        lambda room: room.trainer(options={"anchor_ratio": 0.5}, anchor_dataset=Dataset.from_list([{"text": "a"}])),
    ),
    Case(
        "unused anchors",
        "Anchors that would not be used",
        "`anchor_dataset` (`anchor_dataset_name` of a recipe) is given, but `anchor_ratio` is 0: set it, or leave the data set out.",
        lambda room: room.rollouts(anchor_dataset=Dataset.from_list([{"prompt": "a"}])),
    ),
    Case(
        "beyond the context",
        "A prompt longer than the model's context",
        "`train_dataset`: 1 of 2 row(s) are longer than the model's context of 512 tokens (`max_position_embeddings`): row 1 (… tokens). A length counts the longer prompt and the completion (`max_completion_length` tokens where a target is still to be generated). Shorten those rows, lower `max_completion_length`, leave them out with `overlong='drop'`, or use a model with a longer context.",
        lambda room: room.trainer([PAIR, PAIR | {"perturbed_prompt": "Lyon? What? " * 200}]),
    ),
    Case(
        "beyond the context with its target",
        "A target that would run over the model's context, after the perturbed prompt",
        "`train_dataset`: 1 of 2 row(s) are longer than the model's context of 512 tokens (`max_position_embeddings`): row 1 (… tokens). A length counts the longer prompt and the completion (`max_completion_length` tokens where a target is still to be generated). …, lower `max_completion_length` to at most …, leave …",
        lambda room: room.trainer(
            [PAIR, PAIR | {"perturbed_prompt": "Lyon? What? " * 20}], {"max_completion_length": 490}
        ),
    ),
    Case(
        "beyond the context in rollouts",
        "A prompt longer than the model's context, for on-policy training",
        "`train_dataset`: 4 of 4 row(s) are longer than the model's context of 512 tokens (`max_position_embeddings`): row 0 (…). `overlong='drop'` would leave no row.",
        lambda room: room.rollouts([PAIR | {"perturbed_prompt": "Lyon? What? " * 200}] * 4, {"overlong": "drop"}),
    ),
    Case(
        "beyond the context in a stream",
        "A prompt longer than the model's context, in a stream",
        "…row 1: has … tokens, more than the model's context of 512…",
        lambda room: room.trainer(
            Dataset.from_list([ANSWERED, ANSWERED | {"perturbed_prompt": "Lyon? What? " * 200}]).to_iterable_dataset(),
            {"max_steps": 2, "per_device_train_batch_size": 1},
            model=make_model(),
            processing_class=make_tokenizer(),
        ).train(),
    ),
]

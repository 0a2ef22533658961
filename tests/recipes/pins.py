"""Asks the Hub for the newest commit of each model in the table."""

import json

from huggingface_hub import HfApi
from huggingface_hub.errors import RepositoryNotFoundError

from tests.recipes.files import PINS
from tests.recipes.table import MODELS
from trl_consistency.files import write_text


def newest_commits() -> dict[str, str]:
    """Returns the newest commit of each model. Without all of them the program ends with one line."""
    api, commits = HfApi(), {}
    for hub_id in sorted(model.hub_id for model in MODELS):
        try:
            sha = api.model_info(hub_id).sha
        except RepositoryNotFoundError:
            raise SystemExit(
                f"Nothing is pinned: the Hub has no model {hub_id}, or your token may not see it."
            ) from None
        except Exception as error:  # errors of the Hub and the network share no type
            raise SystemExit(f"Nothing is pinned: the Hub cannot be reached ({type(error).__name__}).") from None
        commits[hub_id] = str(sha)
    return commits


def pin() -> None:
    """Writes the newest commits to where the recipes are made from."""
    write_text(PINS, json.dumps(newest_commits(), indent=2) + "\n")

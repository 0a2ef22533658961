"""A trainer of either kind."""

from tests.helpers.models import make_config
from tests.helpers.on_policy import make_on_policy_config
from trl_consistency import ConsistencyTrainer, OnPolicyConsistencyTrainer


def trainer_of(method, directory, model, options, **arguments):
    """For `opct` the on-policy one; `options` are those of its config."""
    if method == "opct":
        return OnPolicyConsistencyTrainer(model, args=make_on_policy_config(directory, **options), **arguments)
    return ConsistencyTrainer(model, args=make_config(directory, method=method, **options), **arguments)

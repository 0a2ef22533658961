"""The one room for TRL names outside its documented API; `tests/trainer/test_upstream.py` says which one moved."""

from trl.models import unwrap_model_for_generation
from trl.trainer.utils import get_config_model_id, global_then_local_main_first, use_adapter


__all__ = ["get_config_model_id", "global_then_local_main_first", "unwrap_model_for_generation", "use_adapter"]

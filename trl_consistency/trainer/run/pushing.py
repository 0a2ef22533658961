"""Pushes a trainer's model to the Hub in the same way as `trl-consistency push`, including the scan."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from accelerate.utils import is_peft_model
from huggingface_hub import HfApi
from transformers.trainer_utils import HubStrategy

from ...config.options import temporarily
from ...errors import ConsistencyError
from ...log import get_logger
from ...publishing import explain, hub_base, publish
from ...publishing.hub import check_private
from ...upstream import OwnState, get_config_model_id
from .best_checkpoint import why_stopped


logger = get_logger(__name__)


class PushMixin:
    """
    Replaces the upload of [`~transformers.Trainer`], which would send the whole output folder: training arguments as a
    pickle, tables of completions, local paths.
    """

    # Attributes of the trainer that uses this mixin
    args: Any
    model: Any
    hub_model_id: str | None
    is_world_process_zero: Callable[[], bool]
    save_model: Callable[..., None]
    create_model_card: Callable[..., None]
    callback_handler: Any
    state: Any
    control: Any

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Like [`~transformers.Trainer.init_hf_repo`], and raises errors now that would fail the push later."""
        if self.args.hub_strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
            raise ConsistencyError(
                f"`hub_strategy={self.args.hub_strategy.value}` would send the optimizer's state, a pickle, which is never "
                "sent: use `every_save` or `end`."
            )
        if self.args.push_to_hub and is_peft_model(self.model):
            self._check_base_model()
        if not self.is_world_process_zero():
            return
        name = self.args.hub_model_id or Path(self.args.output_dir).absolute().name
        token = token if token is not None else self.args.hub_token
        private = private if private is not None else self.args.hub_private_repo
        try:
            api = HfApi(token=token)
            self.hub_model_id = api.create_repo(name, private=private, exist_ok=True).repo_id
            check_private(api, self.hub_model_id, private)
        except Exception as error:  # Errors of the Hub, the name and the network have no common type.
            raise ConsistencyError(f"`push_to_hub`: {name} cannot be made: {explain(error, name)}") from None

    def _check_base_model(self) -> None:
        base_model = get_config_model_id(self.model.get_base_model().config)
        try:
            hub_base(base_model, None)
        except ConsistencyError:
            raise ConsistencyError(
                f"`push_to_hub`: the base model is {base_model or 'not named'}, which nobody else can load by that name. "
                f"Train without it, and then push the folder: `trl-consistency push {self.args.output_dir} "
                f"{self.args.hub_model_id or 'user/adapter'} --base_model user/name`."
            ) from None

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        # The arguments are saved with the model, and tokens are secrets.
        with temporarily(self, args=self.args._without_tokens()):
            super()._save(output_dir, state_dict)  # type: ignore[misc]

    @OwnState.kept
    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        base_model: str | None = None,
        include: Sequence[str] = (),
        **kwargs: Any,
    ) -> Any:
        """
        Saves the model to `args.output_dir`, then publishes that folder.

        Args:
            commit_message (`str`, *optional*, defaults to `"End of training"`):
                Commit message.
            blocking (`bool`, *optional*, defaults to `True`):
                Whether to wait until the upload ends.
            token (`str`, *optional*):
                Token for the Hub. By default `args.hub_token`, or the token of the login.
            revision (`str`, *optional*):
                Branch. By default `args.hub_revision`.
            private (`bool`, *optional*):
                Whether a new repository is private. By default `args.hub_private_repo`. If `True`, a public repository that
                exists is refused.
            base_model (`str`, *optional*):
                Name of an adapter's base model on the Hub, if it was loaded from a folder.
            include (`Sequence[str]`, *optional*, defaults to `()`):
                Patterns of further files to send.
            **kwargs:
                Passed to `create_model_card`.

        Returns:
            `str`: URL of the repository, or with `blocking=False` a [`~concurrent.futures.Future`] of it. None in all
            processes but the main one.

        Raises:
            [`ConsistencyError`]: If the folder cannot be published, or holds what must not be sent, such as a key.
        """
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        self.save_model(self.args.output_dir, _internal_call=True)
        if not self.is_world_process_zero():
            return None
        token = token if token is not None else self.args.hub_token
        private = private if private is not None else self.args.hub_private_repo
        self.create_model_card(**kwargs)
        if self.hub_model_id is None:
            self.init_hf_repo(token, private)
        options: dict[str, Any] = {
            "base_model": base_model,
            "private": private,
            "revision": revision if revision is not None else self.args.hub_revision,
            "include": include,
            "commit_message": commit_message,
            "token": token,
        }
        if blocking:
            return publish(self.args.output_dir, self.hub_model_id or "", **options)
        return HfApi().run_as_future(publish, self.args.output_dir, self.hub_model_id, **options)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """
        Publishes a checkpoint during training, but none after which the guard stops it. Training waits for it, and continues if it
        fails.
        """
        if not self.is_world_process_zero() or self.args.hub_strategy == HubStrategy.END:
            return
        if why_stopped(self):
            return
        try:
            publish(
                checkpoint_folder,
                self.hub_model_id or "",
                revision=self.args.hub_revision,
                token=self.args.hub_token,
                commit_message=f"Training in progress, step {self.state.global_step}",
            )
        except ConsistencyError as error:
            logger.warning(str(error))

"""Options of the engine that writes a command's answers."""

from dataclasses import dataclass

from ..config.options import SHARE, CommandArguments, at_least, option, with_help


@dataclass(kw_only=True)
@with_help
class EngineArguments(CommandArguments):
    """Options of commands whose answers transformers, vLLM or a vLLM server can write."""

    # Parameters that control the engine
    engine: str = option(
        "transformers",
        help="What writes the answers: `transformers`, `vllm` in this process, or the address of a vLLM server.",
    )
    vllm_gpu_memory_utilization: float = option(
        0.3, SHARE, help="Share of the GPU's memory for `engine` vllm. The model is loaded beside it."
    )
    vllm_server_timeout: float = option(
        240.0, at_least(0), help="Seconds to wait for a server, and for its answers to a batch."
    )

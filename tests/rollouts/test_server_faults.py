"""
What can go wrong with a server, in its place a stand-in for `vllm serve`: each fault ends as a retry or as one clear line,
and none waits much longer than `vllm_server_timeout`. `test_with_vllm.py` has some of them with vLLM itself.
"""

import shutil
import socket
import time

import pytest
import torch

from tests.helpers.models import make_model
from tests.helpers.on_policy import moved
from tests.helpers.vllm_stand_in import LLM, Reply, colocated, served  # noqa: F401
from tests.rollouts.test_adapter_sync import lora, make_trainer
from trl_consistency import ConsistencyError


pytestmark = pytest.mark.long


# Seconds: for faults that wait, and for others, where a busy machine must not look like one
SHORT, LONG = 1.0, 30.0


def train(tmp_path, model_dir, server, **options):
    options = {"max_steps": 2, "learning_rate": 2e-2, "vllm_check_every": 1, **options}
    trainer = make_trainer(
        tmp_path / "out",
        str(model_dir),
        lora(),
        **{"vllm_mode": "server", "vllm_server_base_url": server.url, "vllm_server_timeout": LONG, **options},
    )
    trainer.train()
    return trainer


def instead(server, path, action, times=10**6, after=0):
    """Does something else than answer the requests to a path: `times` times, after the first few."""
    respond, seen = server.respond, []

    def respond_or_not(asked, body):
        if asked == path:
            seen.append(asked)
            if after < len(seen) <= after + times:
                answered = action(body)
                if answered is not None:
                    return answered
        return respond(asked, body)

    server.respond = respond_or_not
    return seen


def raises(error):
    def action(body):
        raise error

    return action


def wait(seconds):
    return lambda body: time.sleep(seconds)


def forgets(server):
    """As a server that is killed in a step and started again: no reply, and no adapter."""

    def action(body):
        server.adapters.clear()
        raise ConnectionAbortedError

    return action


def edited(server, edit):
    """Completions with something changed in each choice, or in their list."""

    def action(body):
        choices = server.complete(**body)["choices"]
        return {"choices": edit(choices)}

    return action


def without(*keys):
    return lambda choices: [{key: value for key, value in c.items() if key not in keys} for c in choices]


COMPLETIONS, LOAD, UNLOAD, HEALTH = (
    "/v1/completions", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/health"
)  # fmt: skip
KILLED = ConnectionAbortedError()


def breaks_off(server):
    """As a server whose generation is paused: it gives the tokens that it has."""

    def action(body):
        choices = server.complete(**body)["choices"]
        for choice in choices:
            told = {name: values[:1] for name, values in choice["logprobs"].items()}
            choice |= {"token_ids": choice["token_ids"][:1], "logprobs": told, "finish_reason": "abort"}
        return {"choices": choices}

    return action


# Each: what is done to the server, and how often the path was asked at least
RETRIED = {
    "killed in a step, and back without its adapter": lambda s: instead(s, COMPLETIONS, forgets(s), 1, 1),
    "answers broken off in a step": lambda s: instead(s, COMPLETIONS, breaks_off(s), 1, 1),
    "back without its adapter between two steps": lambda s: instead(
        s, COMPLETIONS, lambda body: s.adapters.clear(), 1, 1
    ),
    "one error of the server": lambda s: instead(s, COMPLETIONS, raises(Reply(500, "overloaded")), 1, 1),
    "one reply cut off": lambda s: instead(s, COMPLETIONS, raises(KILLED), 1, 1),
    "one page of a proxy": lambda s: instead(s, COMPLETIONS, raises(Reply(200, "<html>busy</html>")), 1, 1),
    "killed while it loads an adapter": lambda s: instead(s, LOAD, raises(KILLED), 1, 1),
    "one error while it loads an adapter": lambda s: instead(s, LOAD, raises(Reply(503, "starting")), 1, 1),
    "does not drop old adapters": lambda s: instead(s, UNLOAD, raises(Reply(500, "busy"))),
    "not ready at the start": lambda s: instead(s, HEALTH, raises(Reply(503, "starting")), 1),
}


@pytest.mark.parametrize("fault", RETRIED)
def test_faults_that_pass(fault, served, tmp_path, model_dir):  # noqa: F811
    seen = RETRIED[fault](served)
    trainer = train(tmp_path, model_dir, served)
    assert len(seen) >= 2
    assert trainer.state.global_step == 2
    assert trainer.rollout_engine._origin.passed


def another_model():
    torch.manual_seed(7)
    return moved(make_model(), scale=0.05)


def serve_another(server):
    server.held.model = another_model().eval()


def ignore_adapter(server):
    adapters = type("Ignored", (dict,), {"__getitem__": lambda self, name: server.held.model})
    server.adapters = adapters()


def keep_older_adapter(server):
    """The adapter after the first step answers from then on."""

    class Kept(dict):
        def __setitem__(self, name, model):
            super().__setitem__(name, model)
            self.kept = [*getattr(self, "kept", []), model]

        def __getitem__(self, name):
            return self.kept[min(len(self.kept), 3) - 1]

    server.adapters = Kept()


TOO_LONG = "This model's maximum context length is 16 tokens"
FAULTS = {
    "hangs at the start": (lambda s: instead(s, HEALTH, wait(3)), r"no vLLM server at .* after 1 seconds.*no answer"),
    "never well": (
        lambda s: instead(s, HEALTH, raises(Reply(503, "engine is dead"))),
        r"no vLLM server.* after 1 seconds.*engine is dead",
    ),
    "another program has the port": (
        lambda s: instead(s, HEALTH, raises(FileNotFoundError())),
        r"is not a vLLM server",
    ),
    "another API": (lambda s: instead(s, "/v1/models", raises(Reply(404, "?"))), r"is not a vLLM server \(404"),
    "no model": (lambda s: instead(s, "/v1/models", lambda body: {"data": []}), r"could not start: IndexError"),
    "asks for a key": (lambda s: instead(s, "/v1/models", raises(Reply(401, "key"))), r"asks for a key \(401\)"),
    "loads no adapters": (lambda s: setattr(s, "loads_adapters", False), r"does not load adapters while it runs"),
    "rank too small": (
        lambda s: instead(s, LOAD, raises(ValueError("LoRA rank 4 is greater than max_lora_rank 2."))),
        r"did not take the adapter.*greater than max_lora_rank 2.*--max-lora-rank 8",
    ),
    "rank too small, in vLLM's own words": (
        lambda s: instead(
            s, LOAD, raises(Reply(500, "Call to add_lora method failed: LoRA rank 4 is greater than max_lora_rank 2."))
        ),
        r"did not take the adapter.*greater than max_lora_rank 2.*--max-lora-rank 8",
    ),
    "cannot read the folder": (
        lambda s: instead(s, LOAD, raises(Reply(404, "Loading lora adapter failed: No adapter found for /dev/shm/x"))),
        r"did not take the adapter.*No adapter found.*be able to read",
    ),
    "hangs while it loads": (
        lambda s: instead(s, LOAD, wait(3), after=1),
        r"no answer within 1 seconds.*Raise `vllm_se",
    ),
    "too slow": (
        lambda s: instead(s, COMPLETIONS, wait(3)),
        r"no answer within 1 seconds.*Raise `vllm_server_timeout`",
    ),
    "out of memory": (
        lambda s: instead(s, COMPLETIONS, raises(Reply(500, "EngineDeadError: CUDA out of memory"))),
        r"did not answer.*out of memory.*resume from the last checkpoint",
    ),
    "killed for good": (
        lambda s: (instead(s, COMPLETIONS, raises(KILLED)), instead(s, HEALTH, raises(KILLED), after=1)),
        r"no vLLM server at .* after 1 seconds.*Start it",
    ),
    "loses the adapter at once": (
        lambda s: instead(s, COMPLETIONS, lambda body: s.adapters.clear()),
        r"did not answer: 400",
    ),
    "prompts too long": (
        lambda s: instead(s, COMPLETIONS, raises(Reply(400, TOO_LONG))),
        r"did not answer.*maximum context",
    ),
    "no token ids": (
        lambda s: instead(s, COMPLETIONS, edited(s, without("token_ids"))),
        r"did not answer with token ids",
    ),
    "a limit of its own": (
        lambda s: instead(
            s, COMPLETIONS, edited(s, lambda cs: [{**c, "token_ids": [5], "finish_reason": "length"} for c in cs])
        ),
        r"cut an answer after 1 tokens, before the \d+ that were asked for",
    ),
    "no token ids of prompts": (
        lambda s: instead(s, COMPLETIONS, edited(s, without("prompt_token_ids"))),
        r"did not answer with token ids",
    ),
    "no log-probabilities": (
        lambda s: instead(s, COMPLETIONS, edited(s, lambda cs: [{**c, "logprobs": None} for c in cs])),
        r"did not return the log-probability of each token",
    ),
    "answers missing": (
        lambda s: instead(s, COMPLETIONS, edited(s, lambda choices: choices[:-1])),
        r"answered \d+ of \d+ prompts",
    ),
    "a larger vocabulary": (
        lambda s: instead(
            s, COMPLETIONS, edited(s, lambda cs: [{**c, "token_ids": [10**6] * len(c["token_ids"])} for c in cs])
        ),
        r"serves `held`, which has tokens that the model in training does not know",
    ),
    "serves another model": (serve_another, r"do not come from the policy.*fit neither.*processed_logprobs"),
    "ignores the adapter": (ignore_adapter, r"do not come from the policy.*fit the base model"),
    "keeps an older adapter": (keep_older_adapter, r"do not come from the policy.*fit an older adapter"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_that_stay(fault, served, tmp_path, model_dir):  # noqa: F811
    arrange, message = FAULTS[fault]
    arrange(served)
    start = time.monotonic()
    with pytest.raises(ConsistencyError, match=message) as caught:
        train(tmp_path, model_dir, served, max_steps=8, vllm_server_timeout=SHORT if "1 seconds" in message else LONG)
    assert time.monotonic() - start < 60
    assert "\n" not in str(caught.value)


def test_no_server(served, tmp_path, model_dir):  # noqa: F811
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(
        ConsistencyError, match=rf"no vLLM server at http://127.0.0.1:{port} after 1 seconds.*Start it"
    ):
        train(tmp_path, model_dir, served, vllm_server_timeout=SHORT, vllm_server_base_url=f"http://127.0.0.1:{port}")
    with pytest.raises(ConsistencyError, match=r"must be like http://127.0.0.1:8000, got '127.0.0.1:8000'"):
        train(tmp_path, model_dir, served, vllm_server_base_url="127.0.0.1:8000")


def test_adapter_folder_goes_away(served, tmp_path, model_dir):  # noqa: F811
    shared = tmp_path / "shared"
    shared.mkdir()
    instead(served, COMPLETIONS, lambda body: shutil.rmtree(shared), times=1)
    with pytest.raises(ConsistencyError, match=r"in `vllm_adapter_dir` .*shared: No such file.*resume"):
        train(tmp_path, model_dir, served, vllm_adapter_dir=str(shared))


def test_adapter_folder_is_full(served, tmp_path, model_dir, monkeypatch):  # noqa: F811
    (tmp_path / "shared").mkdir()
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("trl_consistency.files.shutil.disk_usage", lambda path: usage._replace(free=10))
    with pytest.raises(ConsistencyError, match=r"`vllm_adapter_dir`.*No space left"):
        train(tmp_path, model_dir, served, vllm_adapter_dir=str(tmp_path / "shared"))


def test_two_trainings_on_one_server(served, tmp_path, model_dir):  # noqa: F811
    """Each is answered by its own adapter, while the other one's is loaded too."""
    first, second = (
        make_trainer(
            tmp_path / name,
            str(model_dir),
            lora(),
            max_steps=2,
            learning_rate=2e-2,
            vllm_check_every=1,
            vllm_mode="server",
            vllm_server_base_url=served.url,
            vllm_server_timeout=LONG,
        )
        for name in ("first", "second")
    )
    moved(second.model)
    for trainer in (first, second, first):
        trainer.train()
        assert trainer.rollout_engine._origin.passed
        assert len(served.adapters) == 2


def test_engine_without_memory(colocated, tmp_path, model_dir, monkeypatch):  # noqa: F811
    def no_memory(*args, **options):
        raise ValueError("No available memory for the cache blocks.\nTry increasing `gpu_memory_utilization`")

    trainer = make_trainer(tmp_path, str(model_dir), lora(), max_steps=2)
    monkeypatch.setattr(LLM, "generate", no_memory)
    trainer.rollout_engine._adapter_sync.engine.generate_by_base = no_memory
    with pytest.raises(
        ConsistencyError, match=r"vLLM could not sample rollouts: ValueError: No available memory.*utiliz"
    ):
        trainer.train()
    monkeypatch.setattr(LLM, "__init__", no_memory)
    with pytest.raises(
        ConsistencyError, match=r"vLLM could not start: ValueError: No available memory.*Try"
    ) as caught:
        make_trainer(tmp_path, str(model_dir), lora(), max_steps=2)
    assert "\n" not in str(caught.value)

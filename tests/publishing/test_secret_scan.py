import json
import pickle
import re
import struct
from pathlib import Path

import pytest
import trl
from safetensors.torch import load_file, save_file

from tests.helpers.publishing import RESULTS, set_config
from trl_consistency import ConsistencyError
from trl_consistency.publishing import publish, secret_scan, write_results
from trl_consistency.publishing.secret_scan import PROSE, choose_files, scan


ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"

MAIL = r"a mail address \(name the file in `include` if it should be there\)"
NAMED = "what is called a key, token or password"

# What is put into a line of the card, and what it is called
REFUSED = {
    f"hf_{ALPHABET[:34]}": "a Hugging Face token",
    f"token=hf_{ALPHABET[:34]}.": "a Hugging Face token",
    f"`sk-proj-{ALPHABET}`": r"an API key \(sk-…\)",
    "AKIAIOSFODNN7EXAMPLE": "an AWS key",
    f"aws_secret_access_key = {ALPHABET}": "an AWS key",
    f"ghp_{ALPHABET}": "a GitHub token",
    f"AIza{ALPHABET[:35]}": "a Google API key",
    f"ya29.{ALPHABET}": "a Google token",
    "xoxb-1234567890-abcdefghij": "a Slack token",
    f"https://hooks.slack.com/services/T0/B0/{ALPHABET}": "a Slack webhook",
    f"glpat-{ALPHABET[:20]}": "a GitLab token",
    f"gsk_{ALPHABET}": "a Groq key",
    f"nvapi-{ALPHABET}": "an NVIDIA key",
    f"npm_{ALPHABET}": "an npm token",
    f"sk_live_{ALPHABET}": "a Stripe key",
    f"xai-{ALPHABET * 2}": "an xAI key",
    f"r8_{ALPHABET}a": "a Replicate token",
    f"pypi-AgEI{ALPHABET}": "a PyPI token",
    f"SG.{ALPHABET[:22]}.{ALPHABET}": "a SendGrid key",
    f"dapi{'0123456789abcdef' * 2}": "a Databricks token",
    f"dckr_pat_{ALPHABET}": "a Docker token",
    f"pplx-{ALPHABET}": "a Perplexity key",
    f"eyJ{ALPHABET}.eyJ{ALPHABET}.{ALPHABET}": "a JSON Web Token",
    "https://me:abcdefgh@example.com/x": "an address with a password",
    "postgresql://:abcdefgh@db:5432/x": "an address with a password",
    "-----BEGIN OPENSSH PRIVATE KEY-----": "a private key",
    "export HF_TOKEN=secretsecret": "a token",
    "trained in /home/me/run-3": r"a local path \(/home/me/run-3\)",
    "| Data | /Users/me/pairs.jsonl |": r"a local path \(/Users/me/pairs.jsonl\)",
    "`/root/base`": r"a local path \(/root/base\)",
    "file:///data/x": r"a local path \(file:///data/x\)",
    "/fsx/me/run": r"a local path \(/fsx/me/run\)",
    "/tmp/run": r"a local path \(/tmp/run\)",
    "saved in /disk1/jdoe/run": r"a local path \(/disk1/jdoe/run\)",
    "`/n/home01/jdoe`": r"a local path \(/n/home01/jdoe\)",
    'output_dir="/project/jdoe/run"': r"a local path \(/project/jdoe/run\)",
    "dataset_name: /groups/jdoe/pairs": r"a local path \(/groups/jdoe/pairs\)",
    "(see /net/scratch/jdoe)": r"a local path \(/net/scratch/jdoe\)",
    "/ptmp/jdoe": r"a local path \(/ptmp/jdoe\)",
    "/p/project1/jdoe": r"a local path \(/p/project1/jdoe\)",
    "`/users/jdoe/run`": r"a local path \(/users/jdoe/run\)",
    "/share/home/jdoe": r"a local path \(/share/home/jdoe\)",
    "/hpc/home/jdoe/run": r"a local path \(/hpc/home/jdoe/run\)",
    "saved in /c/Users/jdoe/run": r"a local path \(/c/Users/jdoe/run\)",
    "/usr/users/jdoe": r"a local path \(/usr/users/jdoe\)",
    r"C:\Users\me\base": r"a local path \(C:\\Users\\me\\base\)",
    "C:/Users/me/base": r"a local path \(C:/Users/me/base\)",
    "scp me@cluster:/home/me/run .": r"a local path \(me@cluster:/home/me/run\)",
    "scp cluster:/home/me/run .": r"a local path \(/home/me/run\)",
    "rsync node7:/scratch/jdoe/run .": r"a local path \(/scratch/jdoe/run\)",
    "~/models/base": r"a local path \(~/models/base\)",
    '{"clean_prompt": "What?"}': "training rows",
    "Write to jane.doe@uni-somewhere.edu.": MAIL,
    "[me](mailto:me+hub@a.io)": MAIL,
    "<a_b@c-d.org>": MAIL,
    "My password is hunter2secret": NAMED,
    "**API key**: 8f3a9c1d2e4b5a6f7c8d": NAMED,
    "with the access token `a1b2c3d4e5f6`": NAMED,
    "Authorization: Bearer ab12cd34ef56": NAMED,
    "password=Tr0ub4dor&3": NAMED,
    f"export MISTRAL_API_KEY={ALPHABET}": NAMED,
    f"judge_api_key: {ALPHABET}": NAMED,
    f"NEPTUNE_API_TOKEN='{ALPHABET}'": NAMED,
    "DB_PASSWORD=Tr0ub4dor3": NAMED,
    f"CLIENT_SECRET={ALPHABET}": NAMED,
    f"wandb_token = {ALPHABET}": NAMED,
    f'os.environ["MISTRAL_API_KEY"] = "{ALPHABET}"': NAMED,
    f"os.environ['WANDB_API_KEY'] = '{ALPHABET}'": "a token",
    f'os.environ.setdefault("MISTRAL_API_KEY", "{ALPHABET}")': NAMED,
    f'config["api_key"]="{ALPHABET[-12:]}"': NAMED,
    f'options["token"] = "{ALPHABET}"': NAMED,
    f"--api_key={ALPHABET}": NAMED,
    f"--judge-api-key {ALPHABET}": NAMED,
    f'curl -H "x-api-key: {ALPHABET}"': NAMED,
    f"| API key     | `{ALPHABET}` |": NAMED,
    f"COHERE_API_KEY -> {ALPHABET}": NAMED,
    f"{{'cohere_api_key' => '{ALPHABET}'}}": NAMED,
    f'password := "{ALPHABET[-12:]}"': NAMED,
    f'"mistralApiKey": "{ALPHABET}"': NAMED,
    f'"clientSecret": "{ALPHABET[-12:]}"': NAMED,
    f"AccountKey={ALPHABET}": NAMED,
    f"AZURE_OPENAI_KEY={ALPHABET}": NAMED,
    "PGPASSWORD=Tr0ub4dor3": NAMED,
    "DB_PASS=Tr0ub4dor3": NAMED,
    f"wandb login {'0123456789abcdef' * 2}01234567": "a Weights & Biases key",
    f"wandb.login(key='{'0123456789abcdef' * 2}01234567')": "a Weights & Biases key",
    f"wandb.login(relogin=True, key='{'0123456789abcdef' * 2}01234567')": "a Weights & Biases key",
    f"wandb login --relogin {'0123456789abcdef' * 2}01234567": "a Weights & Biases key",
    f"wandb login wandb_v1_{ALPHABET[:27]}_{ALPHABET}": "a Weights & Biases key",
    f'wandb.login(key="wandb_v1_{ALPHABET[:27]}_{ALPHABET}")': "a Weights & Biases key",
    f"fw_{ALPHABET[:24]}": "a Fireworks key",
    f"https://discord.com/api/webhooks/1234567890/{ALPHABET}": "a Discord webhook",
    f"1234567890:AA{ALPHABET[:33]}": "a Telegram token",
    f"https://api.telegram.org/bot1234567890:AA{ALPHABET[:33]}/sendMessage": "a Telegram token",
    f"https://discord.com/api/v10/webhooks/1234567890/{ALPHABET}": "a Discord webhook",
    f"hf_oauth_eyJhbGciOiJFZERTQSJ9.eyJ{ALPHABET}.{ALPHABET}": "a Hugging Face token",
    f"hf_jwt_eyJ-bGc.eyJ{ALPHABET}.{ALPHABET}": "a Hugging Face token",
    "-----BEGIN PGP PRIVATE KEY BLOCK-----": "a private key",
    "PuTTY-User-Key-File-2: ssh-rsa": "a private key",
    f"dckr_oat_{ALPHABET}": "a Docker token",
    f"https://me.blob.core.windows.net/c?sv=2022-11-02&sig={ALPHABET}AbCd%3D": "an Azure signature",
    f"https://api.x.org/v1?key={ALPHABET}": NAMED,
    "Authorization: Basic dXNlcjpodW50ZXIyMg==": NAMED,
    f"**API key:** `{ALPHABET}`": NAMED,
    f"API key: <code>{ALPHABET}</code>": NAMED,
    f"<b>API key:</b> {ALPHABET}": NAMED,
    f"<apiKey>{ALPHABET}</apiKey>": NAMED,
    f"api_key: >-\n  {ALPHABET}": NAMED,
    f"curl -u me:{ALPHABET[-12:]} https://x.y": NAMED,
    f"wandb login --relogin \\\n  {'0123456789abcdef' * 2}01234567": "a Weights & Biases key",
    f"wandb.login(host=get('H'), key='{'0123456789abcdef' * 2}01234567')": "a Weights & Biases key",
    f'{{"refresh_token": "1//0g{ALPHABET}"}}': "a Google token",
    f"GOOGLE_REFRESH_TOKEN=1//0g{ALPHABET}": "a Google token",
    f"whsec_{ALPHABET}": "a Stripe key",
    f"sk_test_{ALPHABET}": "a Stripe key",
    '{"ghcr.io": {"auth": "bWU6aHVudGVyMnNlY3JldA=="}}': "a Docker token",
    f'{{"username":"me","key":"{"0123456789abcdef" * 2}"}}': "a Kaggle key",
    f'{{"key": "{"0123456789abcdef" * 2}", "username": "me"}}': "a Kaggle key",
    f"KGAT_{'0123456789abcdef' * 2}": "a Kaggle key",
    f"tgp_v1_{ALPHABET[:10]}_{ALPHABET}": "a Together key",
    f"as-{ALPHABET[:22]}": "a Modal token",
    f"jina_{ALPHABET}{ALPHABET}": "a Jina key",
    f"tvly-dev-{ALPHABET}": "a Tavily key",
    f"dop_v1_{'0123456789abcdef' * 4}": "a DigitalOcean token",
    f"hvs.{ALPHABET}": "a Vault token",
    f"tskey-auth-{ALPHABET[:12]}-{ALPHABET}": "a Tailscale key",
    f"rpa_{ALPHABET}": "a RunPod key",
    f"lsv2_pt_{'0123456789abcdef' * 2}_0123456789": "a LangSmith key",
    f"wandb:\n  key: {'0123456789abcdef' * 2}01234567": "a Weights & Biases key",
    f"WANDB_KEY {'0123456789abcdef' * 2}01234567": "a Weights & Biases key",
    f"git clone https://{ALPHABET}@github.com/me/x": "an address with a password",
    "hf auth login --token abcd1234efgh5678": NAMED,
    f"modal token set --token-id=ak-{ALPHABET}": NAMED,
    f"--token_secret {ALPHABET}": NAMED,
    "docker login -u me -p hunter2secret9": NAMED,
    "sshpass -p hunter2secret9 ssh me@node7": NAMED,
}
ALLOWED = (
    "https://huggingface.co/home/me/x and and/or, [link](/docs/x), </think>, 1/2/3, task-ask-for-a-long-while-indeed, "
    "hf_transfer, `HF_TOKEN`, sk-learn, ~50%, ~/ alone, w/o, C:, a clean_prompt column, "
    "npm_config_registry, https://example.com/@me/x:y, http://localhost:8000/a@b, mailto:me@example.com, gsk_short, eyJ, "
    "https://example.com/a?b=c:d@e, user@host:22, me@example.com, git@github.com:a/b, 1+a@users.noreply.github.com, "
    "noreply@a.com, torch@2.0.1, @me, a password of 12 characters, the api key of 2024, api keys, an access token, bearer, "
    'https://gitlab.com/project/me/x, example.com/groups/me, [the project](/project/me/x), <a href="/groups/me">, n/a, /n/a, /n/n/nAnswer, '
    'pad_token: "<|endoftext|>", image_token = tokenizer.image_token, token: 151643, the secret: keep_it_2, n_token=4096, '
    'os.environ["HF_TOKEN"] = userdata.get("HF_TOKEN"), config["api_key"] = settings.key_2, ("api_key", "gpt-4o-mini-2024-07-18"), '
    "| API key | claude-3-5-sonnet-20241022 |, --api-key KEY, first_pass = run_2_steps, sort_key = by_length_of_20_tokens, wandb login\n"
    f"git checkout {'0123456789abcdef' * 2}01234567, wandb.login(), at the commit {'0123456789abcdef' * 2}01234567, wandb_v1_keys, "
    "Authorization: Basic <base64>, https://example.com/a?key=value&sig=none, robot12345, </apiKey><b>2024</b>, "
    "curl -u user:$TOKEN_2_OF_MINE https://x.y, curl -u user:password x, api_key: | a key, "
    "hf auth login --token $HF_TOKEN, --token YOUR_TOKEN, --pad_token 151643abc, docker login -p $PASSWORD_2, login -p 22222222, "
    "https://a-long-name-for-a-user@example.com, a wandb key, wandb_run 2, "
    '"auth": "none", {"key": "value"}, whsec_secret, sk_test_key, 1//0 = inf, '
    "A:/B, Q:/ A:/, git@github.com:/a, -v models:/root/x, me@example.com:8000/a/b, c:/x, "
    "GET /users/7, /api/users/7, https://example.com/en/home/me, his/her, the page /project, /groups and /net, a /p/r/n curve, /u/someone, r/project/x, km/h/s, /usr/bin/env, /dev/null"
)


def findings(folder):
    return [str(finding) for finding in scan(folder, choose_files(folder)[0])]


def test_clean_folder_has_none(adapter_dir):
    with (adapter_dir / "README.md").open("a") as card:
        card.write(ALLOWED)
    assert findings(adapter_dir) == []


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_refused_is_named_with_file_and_line(adapter_dir, text):
    lines = (adapter_dir / "README.md").read_text().splitlines()
    (adapter_dir / "README.md").write_text("\n".join([*lines, text, "more"]))
    (found,) = findings(adapter_dir)
    assert re.fullmatch(f"README.md, line {len(lines) + 1}: {REFUSED[text]}", found)
    assert not any(secret in found for secret in ("abcdef", "IOSFODNN", "secretsecret", "hunter2", "jane"))


def test_push_refuses_all_of_it_at_once(hub, adapter_dir):
    set_config(adapter_dir, loftq_config={"path": "/models/loftq"})
    lines = (adapter_dir / "README.md").read_text().splitlines()
    (adapter_dir / "README.md").write_text("\n".join([*lines, "/home/me/y"]))  # above it, results will come
    (adapter_dir / "chat_template.jinja").write_text("{# /home/me/x #}\n\n{# hf_" + ALPHABET + " #}")
    write_results(adapter_dir, RESULTS)
    message = (
        f"Nothing was sent: {adapter_dir} holds what must not be published.\n"
        rf"  README.md, line {len(lines) + 1}: a local path \(/home/me/y\)\n"
        r"  adapter_config.json, line \d+: a local path in `path` \(/models/loftq\)\n"
        r"  chat_template.jinja, line 1: a local path \(/home/me/x\)\n"
        "  chat_template.jinja, line 3: a Hugging Face token$"
    )
    with pytest.raises(ConsistencyError, match=message):
        publish(adapter_dir, "me/bct")
    assert not hub.requests


def test_path_of_the_folder_itself(adapter_dir):
    """Wherever it lies, and in a vocabulary, too, whose tokens otherwise look like paths."""
    vocabulary = {"/root/x": 0, "/home/user": 1, str(adapter_dir.resolve()): 2}
    (adapter_dir / "vocab.json").write_text(json.dumps(vocabulary))
    assert findings(adapter_dir) == ["vocab.json, line 1: the path of this folder"]


def test_paths_where_one_works_and_lives(adapter_dir, monkeypatch):
    """Wherever that is on a machine: only the usual roots were looked for."""
    monkeypatch.setattr(Path, "cwd", staticmethod(lambda: Path("/zz9/jdoe/work")))
    monkeypatch.setattr(Path, "home", staticmethod(lambda: Path("/usr/people/jdoe")))
    lines = "zz9/a and https://zz9.org/zz9/a\nof /zz9/team/pairs.jsonl\n`/usr/people/jdoe/x`\n/usr/bin/env, /zz9\n"
    (adapter_dir / "README.md").write_text(lines)
    assert findings(adapter_dir) == [
        "README.md, line 2: a local path (/zz9/team/pairs.jsonl)",
        "README.md, line 3: a local path (/usr/people/jdoe/x)",
    ]


def test_a_working_directory_that_was_removed(adapter_dir, monkeypatch):
    def removed():
        raise FileNotFoundError

    monkeypatch.setattr(Path, "cwd", staticmethod(removed))
    monkeypatch.setattr(Path, "home", staticmethod(lambda: Path("/")))
    assert findings(adapter_dir) == []


def test_own_token_in_any_form(adapter_dir, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "of-another-shape")
    (adapter_dir / "LICENSE").write_text("of-another-shape")
    assert findings(adapter_dir) == ["LICENSE, line 1: the token that you are logged in with"]


def test_absolute_path_in_any_config(adapter_dir):
    config = json.loads((adapter_dir / "tokenizer_config.json").read_text())
    config |= {"name_or_path": "/models/base", "extra": ["/s", "</x/y>"]}
    (adapter_dir / "tokenizer_config.json").write_text(json.dumps(config))
    assert findings(adapter_dir) == ["tokenizer_config.json, line 1: a local path in `name_or_path` (/models/base)"]


def test_metadata_of_weights(adapter_dir):
    path = adapter_dir / "adapter_model.safetensors"
    save_file(load_file(path), path, metadata={"from": "/home/me/run"})
    assert findings(adapter_dir) == ["adapter_model.safetensors: a local path (/home/me/run)"]


def test_what_is_named_in_the_metadata_of_weights(adapter_dir):
    path = adapter_dir / "adapter_model.safetensors"
    save_file(load_file(path), path, metadata={"by": "jane.doe@uni-somewhere.edu", "api_key": ALPHABET})
    assert [re.sub(r" \(.*", "", of) for of in sorted(findings(adapter_dir))] == [
        "adapter_model.safetensors: a mail address",
        f"adapter_model.safetensors: {NAMED}",
    ]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (lambda whole: whole[:-1], "cut short: save the model again"),
        (lambda whole: whole + b"x", "cut short: save the model again"),
        (lambda whole: b"", "not a safetensors file"),
        (lambda whole: b"[]", "not a safetensors file"),
        (lambda whole: struct.pack("<Q", 2) + b"[]", "not a safetensors file"),
        (lambda whole: struct.pack("<Q", 1 << 60) + whole, "not a safetensors file"),
    ],
)
def test_broken_weights(adapter_dir, content, fault):
    path = adapter_dir / "adapter_model.safetensors"
    path.write_bytes(content(path.read_bytes()))
    assert findings(adapter_dir) == [f"adapter_model.safetensors: {fault}"]


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "tokenizer.model", "README.md"])
def test_pickle_under_another_name(adapter_dir, name):
    (adapter_dir / name).write_bytes(pickle.dumps({"a": 1}))
    assert any(finding.endswith("a pickle or an archive under another name") for finding in findings(adapter_dir))


@pytest.mark.parametrize("name", ["training_args.bin", "optimizer.pt", "rng_state.pth", "checkpoint-2/scheduler.pt"])
def test_pickles_are_never_sent(adapter_dir, name):
    (adapter_dir / name).parent.mkdir(exist_ok=True)
    (adapter_dir / name).write_bytes(b"")
    assert name not in choose_files(adapter_dir)[0]
    with pytest.raises(ConsistencyError, match=f"`include`: {name} is a pickle, which is never sent"):
        choose_files(adapter_dir, ["*"] if "/" in name else [name])


def test_rows_are_sent_if_they_are_asked_for(adapter_dir):
    (adapter_dir / "pairs.jsonl").write_text('{"clean_prompt": "What?"}\n{"note": "/home/me/x"}\n')
    assert "pairs.jsonl" not in choose_files(adapter_dir)[0]
    files, left_out = choose_files(adapter_dir, ["pairs.jsonl"])
    assert "pairs.jsonl" not in left_out
    found = scan(adapter_dir, files, include=["pairs.jsonl"])
    assert [str(finding) for finding in found] == ["pairs.jsonl, line 2: a local path (/home/me/x)"]


def test_include_that_is_not_there(adapter_dir):
    with pytest.raises(ConsistencyError, match=r"`include`: no file in .*bct is called report.html"):
        choose_files(adapter_dir, ["report.html"])


def test_chat_templates_of_real_models_pass(adapter_dir):
    (adapter_dir / "additional_chat_templates").mkdir()
    templates = sorted((Path(trl.__file__).parent / "chat_templates").glob("*.jinja"))
    assert templates
    for template in templates:
        (adapter_dir / "additional_chat_templates" / template.name).write_text(template.read_text())
    assert f"additional_chat_templates/{templates[0].name}" in choose_files(adapter_dir)[0]
    assert findings(adapter_dir) == []


def test_a_mail_address_is_sent_if_its_file_is_asked_for(adapter_dir):
    (adapter_dir / "README.md").write_text("Write to me@a.io. My password is hunter2secret.")
    found = scan(adapter_dir, ["README.md"], include=["README.md"])
    assert [str(finding) for finding in found] == [f"README.md, line 1: {NAMED}"]


@pytest.mark.parametrize("name", ["LICENSE", "NOTICE.txt", "chat_template.jinja"])
def test_addresses_in_the_words_of_others_pass(adapter_dir, name):
    (adapter_dir / name).write_text("Copyright Jane <jane@somewhere.org>")
    assert findings(adapter_dir) == []


ROOT = Path(__file__).parents[2]
# Real text without such things: questions, answers and prompts, and pages in plain English
REAL_TEXT = {
    "rows of the package": (ROOT / "trl_consistency", "*.jsonl"),
    "pages": (ROOT / "docs", "*.md"),
    "real questions and pairs": (ROOT / ".." / "shared" / "data", "*.*"),
}


@pytest.mark.parametrize("where", REAL_TEXT)
def test_false_alarms_on_real_text(where):
    """None in 7,000 lines of the package and the docs, and none in 9,700 lines of real questions (4.6 MB)."""
    folder, pattern = REAL_TEXT[where]
    files = [file for file in sorted(folder.rglob(pattern)) if file.suffix in (".jsonl", ".csv", ".md")]
    if not files:
        pytest.skip("the real questions are not beside this checkout")
    alarms = [
        f"{file.name}: {match[0].decode(errors='replace')}"
        for file in files
        for what in PROSE.values()
        for match in re.finditer(what, file.read_bytes())
    ]
    paths = re.compile(secret_scan._NO_LINK + rb"/(?:" + secret_scan._OF_CLUSTERS + rb")/[\w.@+-]+")
    alarms += [f"{file.name}: {match[0].decode()}" for file in files for match in paths.finditer(file.read_bytes())]
    assert alarms == []
    assert sum(file.read_bytes().count(b"\n") for file in files) > 1_000


@pytest.mark.parametrize("before", ["\n", "\t", "x = 1\r\n", '"', "\\"])
@pytest.mark.parametrize("text", REFUSED)
def test_text_in_json_is_read_as_it_is_meant(adapter_dir, text, before):
    """A token after a line break was the end of a word, `nhf_…`, and a key in quotes stood behind a backslash."""
    name = "notebook.ipynb"
    (adapter_dir / name).write_text(json.dumps({"cells": [{"source": ["first", f"{before}{text}"]}]}, indent=1))
    found = {str(finding) for finding in scan(adapter_dir, [name])}
    assert any(re.fullmatch(f"{name}, line 6: {REFUSED[text]}", of) for of in found), found


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_text_in_other_encodings_is_read(adapter_dir, encoding):
    """As PowerShell writes it. Nothing was found there."""
    (adapter_dir / "notes.txt").write_bytes(f"Notes.\nhf_{ALPHABET[:34]}\n".encode(encoding))
    with pytest.raises(ConsistencyError, match=r"notes\.txt, line 2: a Hugging Face token$"):
        publish(adapter_dir, "me/bct", dry_run=True, include=["notes.txt"])

"""Token ids of conversations and answers: from a tokenizer's files, or from a server's own /tokenize.

Both forms of /tokenize are spoken: vLLM's takes a conversation; llama.cpp's takes a text, which /apply-template makes
of a conversation. A tokenizer's files are those that a model's folder has: tokenizer.json, tokenizer_config.json and,
where it stands alone, chat_template.jinja. Reading them needs the packages `tokenizers` and `jinja2`.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

import httpx

from specbench import UserError
from specbench.tls import tls_context

Messages = Sequence[Mapping[str, Any]]
UNKNOWN_END = -1  # stands for the end-of-sequence token where its id cannot be had: no prompt holds it

_TIMEOUT_S = 60.0
_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
_TEMPLATE_ARGUMENTS = {"enable_thinking": False}  # what bench.py sends as chat_template_kwargs


class Tokenizer(Protocol):
    """What makes token ids of text."""

    end_id: int
    """The id of the token that ends an answer, or UNKNOWN_END."""

    def prompt_ids(self, messages: Messages) -> list[int]:
        """The ids that the model reads before its answer, chat template included."""

    def text_ids(self, text: str) -> list[int]:
        """The ids of a text alone, without tokens that mark a start or an end."""


# ---- a server


class ServerTokenizer:
    """POST /tokenize of a vLLM or llama.cpp server.

    Raises UserError where the server cannot be reached or has no such path.
    """

    def __init__(self, url: str, *, headers: Mapping[str, str] | None = None, use_proxies: bool = False) -> None:
        """`headers`: what its gateway asks for. `use_proxies`: whether the environment's proxies lead there."""
        self._url = url.rstrip("/")
        self._client = httpx.Client(
            headers=dict(headers or {}), verify=tls_context(), timeout=_TIMEOUT_S, trust_env=use_proxies
        )
        probe = self._post("tokenize", {"messages": [{"role": "user", "content": "1"}]}, refused_ok=True)
        self._takes_messages = bool(probe and probe.get("tokens"))
        self.end_id = UNKNOWN_END if self._takes_messages else self._llama_cpp_end()

    def prompt_ids(self, messages: Messages) -> list[int]:
        """The ids that the model reads before its answer, chat template included."""
        template = {"messages": list(messages), "chat_template_kwargs": _TEMPLATE_ARGUMENTS}
        if self._takes_messages:
            return self._ids({**template, "add_generation_prompt": True})
        prompt = self._post("apply-template", template).get("prompt")
        if not isinstance(prompt, str):
            raise UserError(f"{self._url}/apply-template does not answer with a prompt: give --tokenizer instead")
        return self._ids({"content": prompt, "add_special": True, "parse_special": True})

    def text_ids(self, text: str) -> list[int]:
        """The ids of a text alone, without tokens that mark a start or an end."""
        if self._takes_messages:
            return self._ids({"prompt": text, "add_special_tokens": False})
        return self._ids({"content": text, "add_special": False, "parse_special": False})

    def max_model_len(self) -> int | None:
        """The most tokens of prompt and answer together; None where the server does not say."""
        for path in ("v1/models", "server-record"):
            try:
                value = self._client.get(f"{self._url}/{path}").json()
                limit = (value["data"][0] if "data" in value else value)["max_model_len"]
            except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError, IndexError):
                continue
            if isinstance(limit, int) and limit > 0:
                return limit
        return None

    def _llama_cpp_end(self) -> int:
        try:
            text = self._client.get(f"{self._url}/props").json()["eos_token"]
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            return UNKNOWN_END
        ids = self._ids({"content": text, "add_special": False, "parse_special": True})
        return ids[0] if len(ids) == 1 else UNKNOWN_END

    def _ids(self, body: Mapping[str, Any]) -> list[int]:
        tokens = self._post("tokenize", body).get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
            raise UserError(f"{self._url}/tokenize does not answer with token ids: give --tokenizer instead")
        return tokens

    def _post(self, path: str, body: Mapping[str, Any], *, refused_ok: bool = False) -> dict[str, Any]:
        where = f"{self._url}/{path}"
        try:
            response = self._client.post(where, json=body)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = str(error) or type(error).__name__
            raise UserError(f"cannot reach {where} ({reason}): is the server up, and is --url right?") from None
        if refused_ok and response.status_code in (400, 422):  # it has the path and takes another form
            return {}
        if response.status_code != 200:
            raise UserError(f"{where} answers {response.status_code}: give --tokenizer instead, or another --url")
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise UserError(f"{where} does not answer with a JSON object: is --url a vLLM or llama.cpp server?")
        return answer


# ---- a tokenizer's files


class FolderTokenizer:
    """A tokenizer and its chat template, from a model's folder or from the Hugging Face hub by name.

    Raises UserError naming the package or the file that is missing, or what is wrong with it.
    """

    def __init__(self, name: str) -> None:
        try:
            import tokenizers
        except ImportError:
            raise UserError(
                "--tokenizer needs the package tokenizers: run `pip install -r requirements-forecast.txt`, "
                "or give the --url of a server of this model"
            ) from None
        folder = _folder(name)
        config = _config(folder)
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # the package raises nothing narrower
            raise UserError(f"{folder / 'tokenizer.json'} cannot be read as a tokenizer: {error}") from None
        self._special = _special_tokens(config)
        self._template = _template(folder, config)
        end = self._tokenizer.token_to_id(self._special["eos_token"]) if "eos_token" in self._special else None
        self.end_id = UNKNOWN_END if end is None else int(end)

    def prompt_ids(self, messages: Messages) -> list[int]:
        """The ids that the model reads before its answer, chat template included."""
        try:
            text = self._template.render(
                messages=list(messages), add_generation_prompt=True, **_TEMPLATE_ARGUMENTS, **self._special
            )
        except Exception as error:  # a template is a program: it may raise anything
            raise UserError(f"the chat template does not take this conversation: {error}") from None
        return self.text_ids(text)

    def text_ids(self, text: str) -> list[int]:
        """The ids of a text alone, without tokens that mark a start or an end."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)


def _folder(name: str) -> Path:
    folder = Path(name)
    if folder.is_dir():
        if not (folder / _FILES[0]).is_file():
            raise UserError(f"--tokenizer {name} has no {_FILES[0]}: name a model's folder, or its name on the hub")
        return folder
    if folder.is_absolute() or name.startswith(".") or name.count("/") > 1:
        raise UserError(f"--tokenizer {name} is not a folder: name a model's folder, or its name on the hub")
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name, allow_patterns=list(_FILES)))
    except Exception as error:  # of the hub, of the network, of the file system
        reason = str(error).strip().split("\n", 1)[0]
        raise UserError(f"--tokenizer {name} is no folder, and the hub does not give it: {reason}") from None


def _config(folder: Path) -> dict[str, Any]:
    path = folder / _FILES[1]
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if not isinstance(config, dict):
        raise UserError(f"{path} is not a JSON object")
    return config


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """bos_token, eos_token, … as templates know them: a text, or an object that holds it."""
    tokens = {}
    for name, value in config.items():
        content = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(content, str):
            tokens[name] = content
    return tokens


def _template(folder: Path, config: Mapping[str, Any]) -> Any:
    alone = folder / _FILES[2]
    source = alone.read_text(encoding="utf-8") if alone.is_file() else config.get("chat_template")
    if isinstance(source, list):  # several named templates
        source = next((each.get("template") for each in source if each.get("name") == "default"), None)
    if not isinstance(source, str):
        raise UserError(f"{folder} has no chat template: give the --url of a server of this model instead")
    try:
        from jinja2.exceptions import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise UserError(
            "--tokenizer needs the package jinja2: run `pip install -r requirements-forecast.txt`"
        ) from None
    # As transformers sets it up, which every published template is written for.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    environment.globals["raise_exception"] = _raise
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise UserError(f"the chat template of {folder} is not one: {error}") from None


def _raise(message: str) -> NoReturn:
    raise ValueError(message)

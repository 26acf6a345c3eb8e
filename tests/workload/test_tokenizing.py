"""Token ids from a tokenizer's files and from the two forms of /tokenize."""

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from support import RECORDINGS, ROOT, find_free_port
from support.tiny_tokenizer import TEMPLATE, write_tokenizer

from specbench import UserError
from specbench.record.prompts import read_prompt_tokens
from specbench.workload.inventory import read_inventory
from specbench.workload.tokenizing import UNKNOWN_END, FolderTokenizer, ServerTokenizer

pytest.importorskip("tokenizers", reason="requirements-forecast.txt is not installed")
HELLO = [{"role": "user", "content": "hello world"}]


# ---- a folder


def test_a_folder(tmp_path: Path) -> None:
    tokenizer = FolderTokenizer(str(write_tokenizer(tmp_path, "hello world")))
    assert tokenizer.text_ids("world hello") == [8, 7]
    assert tokenizer.prompt_ids(HELLO) == [1, 4, 7, 8, 2, 1, 5]  # <s> user hello world </s> <s> assistant
    assert tokenizer.end_id == 2


def test_a_template_of_its_own_file_goes_first(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, "hello")
    (tmp_path / "chat_template.jinja").write_text("hello")
    assert FolderTokenizer(str(tmp_path)).prompt_ids(HELLO) == [7]


def test_the_default_of_several_templates(tmp_path: Path) -> None:
    templates = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": TEMPLATE}]
    write_tokenizer(tmp_path, "hello world", templates)
    assert FolderTokenizer(str(tmp_path)).prompt_ids(HELLO)[:2] == [1, 4]


def test_a_template_may_use_what_transformers_offers(tmp_path: Path) -> None:
    template = "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m | tojson }}<s>{% endfor %}"
    write_tokenizer(tmp_path, "hello", template)
    ids = FolderTokenizer(str(tmp_path)).prompt_ids([{"role": "user", "content": "é"}] * 2)
    assert ids[-1] == 1 and ids.count(1) == 1


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        (None, "has no chat template"),
        ("{% if %}", "is not one"),
        ("{{ raise_exception('only system messages') }}", "does not take this conversation: only system messages"),
        ("{{ messages.__class__.__mro__ }}", "does not take this conversation"),
    ],
)
def test_templates_that_cannot_be_used(template: str | None, sentence: str, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, "hello", template)
    with pytest.raises(UserError, match=sentence):
        FolderTokenizer(str(tmp_path)).prompt_ids(HELLO)


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no tokenizer\.json"):
        FolderTokenizer(str(tmp_path))
    with pytest.raises(UserError, match="is not a folder"):
        FolderTokenizer(str(tmp_path / "nothing"))
    write_tokenizer(tmp_path, "hello")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="cannot be read as a tokenizer"):
        FolderTokenizer(str(tmp_path))
    (tmp_path / "tokenizer_config.json").write_text("[")
    with pytest.raises(UserError, match="cannot be read"):
        FolderTokenizer(str(tmp_path))


def test_a_name_that_the_hub_does_not_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="is no folder, and the hub does not give it"):
        FolderTokenizer("nobody/nothing")


def test_a_template_may_not_reach_outside(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, "hello", "{{ ''.__class__.__base__.__subclasses__() }}")
    with pytest.raises(UserError, match="unsafe"):
        FolderTokenizer(str(tmp_path)).prompt_ids(HELLO)


# ---- servers


def test_the_embedded_engine_tokenizes_as_vllm_did(embedded_engine: Callable[[str], str]) -> None:
    tokenizer = ServerTokenizer(embedded_engine("baseline"))
    cases = read_inventory(ROOT / "prompts.jsonl").cases
    ids = {case.id: tokenizer.prompt_ids(case.messages) for case in cases}
    assert ids == read_prompt_tokens(ROOT / "results" / "h200-smollm2-135m" / "01-baseline-c1")
    assert tokenizer.end_id == 2


@pytest.mark.parametrize(
    ("case", "prompt"),
    [
        ("explain-1", "Explain in one paragraph how a bicycle stays upright while moving."),
        ("short-1", "What is the capital of France? Answer in one word."),
    ],
)
def test_the_embedded_engine_has_the_prompt_ids_that_vllm_streamed(
    case: str, prompt: str, embedded_engine: Callable[[str], str]
) -> None:
    """The recordings are of other prompts than prompts.jsonl now holds; these are two of theirs."""
    tokenizer = ServerTokenizer(embedded_engine("baseline"))
    assert tokenizer.prompt_ids([{"role": "user", "content": prompt}]) == streamed_prompt(case)


def streamed_prompt(case: str) -> list[int]:
    path = RECORDINGS / "ngram" / "streams" / f"{case}.token-ids.jsonl"
    for line in path.read_text().splitlines():
        for event in json.loads(line)[1].split("\n\n"):
            if event.startswith("data: {") and (ids := json.loads(event[6:]).get("prompt_token_ids")):
                return list(ids)
    raise AssertionError(path)


class Tokenize(BaseHTTPRequestHandler):
    """vLLM's form of POST /tokenize, as its protocol.py states it: a conversation or a prompt, never both."""

    asked: list[dict[str, Any]]
    answer: Any = None
    status = 200

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).asked.append({"path": self.path, **body})
        words = body.get("prompt", "").split()
        tokens = [100 + len(body["messages"])] if "messages" in body else [len(word) for word in words]
        usual = {"count": len(tokens), "max_model_len": 9, "tokens": tokens}
        answer = usual if self.answer is None else self.answer
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def vllm_form() -> Iterator[tuple[str, type[Tokenize]]]:
    handler = type("Handler", (Tokenize,), {"asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", handler
    server.shutdown()
    server.server_close()


def test_vllms_form(vllm_form: tuple[str, type[Tokenize]]) -> None:
    url, handler = vllm_form
    tokenizer = ServerTokenizer(url + "/")
    assert tokenizer.prompt_ids(HELLO) == [101]
    assert tokenizer.text_ids("a bcd") == [1, 3]
    assert tokenizer.end_id == UNKNOWN_END
    conversation, text = handler.asked[-2:]
    assert conversation["add_generation_prompt"] is True
    assert conversation["chat_template_kwargs"] == {"enable_thinking": False}
    assert text == {"path": "/tokenize", "prompt": "a bcd", "add_special_tokens": False}


@pytest.mark.parametrize(
    ("status", "answer", "sentence"),
    [
        (404, {}, "answers 404: give --tokenizer"),
        (200, b"<html>", "does not answer with a JSON object"),
        (200, [], "does not answer with a JSON object"),
        (200, {"tokens": ["a"]}, "does not answer with token ids"),
    ],
)
def test_servers_that_do_not_tokenize(
    status: int, answer: Any, sentence: str, vllm_form: tuple[str, type[Tokenize]]
) -> None:
    url, handler = vllm_form
    handler.status, handler.answer = status, answer
    with pytest.raises(UserError, match=sentence):
        ServerTokenizer(url).prompt_ids(HELLO)


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(UserError, match="cannot reach"):
        ServerTokenizer(f"http://127.0.0.1:{find_free_port()}")

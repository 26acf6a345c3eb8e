"""The address and the token of the server to measure: what is refused, and that no secret is shown."""

from typing import Any

import pytest

from specbench import UserError
from specbench.client.target import check_url, find_target, run_in_url


@pytest.mark.parametrize(
    ("url", "changes", "says"),
    [
        (None, {}, "set SERVICE_URL or give --url"),
        ("", {}, "set SERVICE_URL or give --url"),
        ("localhost:8000", {}, "is not a URL"),
        ("ftp://h/", {}, "is not a URL"),
        ("http://", {}, "is not a URL"),
        ("http://[::1", {}, "is not a URL"),
        ("http://h:abc", {}, "is not a URL"),
        ("http://a\x7fb", {}, "is not a URL"),
        ("http://:secret@h", {}, "may hold no user name"),
        ("http://a:secret/@h", {}, "may hold no user name"),
        ("https://h", {"token": "secret\n"}, "the token holds"),
        ("https://h", {"token": "my secret"}, "the token holds"),
        ("https://h", {"token": "secrét"}, "the token holds"),
        ("http://user:secret@h/", {}, "may hold no user name"),
        ("http://h/?token=secret", {}, "may hold no user name"),
        ("https://h/services/v1/n/o/p/runs/aaaa/8000/", {"service_run": "bbbb"}, "earlier run"),
        ("http://gpu-host:8000", {"token": "secret"}, "--insecure-http"),
    ],
)
def test_a_url_that_may_not_be_measured_is_one_sentence(url: str | None, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as error:
        check_url(url, **{"service_run": None, "token": None, "insecure_http": False, **changes})
    assert says in str(error.value) and "secret" not in str(error.value)


def test_urls_that_may_be_measured() -> None:
    free = {"service_run": None, "token": None, "insecure_http": False}
    assert check_url("http://h:8/a/b/", **free) == "http://h:8/a/b"
    assert check_url("http://127.0.0.1:8000", **{**free, "token": "t"})
    assert check_url("http://[::1]:8000", **{**free, "token": "t"})
    assert check_url("http://gpu:8", **{**free, "token": "t", "insecure_http": True})
    run = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
    url = f"https://h/services/v1/n/o/p/runs/{run.replace('-', '')}/8000"
    assert check_url(url, **{**free, "service_run": run}) == url
    assert run_in_url(url) == run.replace("-", "")


def test_a_project_without_a_run_says_which_option_is_missing() -> None:
    with pytest.raises(UserError, match="add --service-run UUID"):
        find_target(url=None, service_run=None, project="P", insecure_http=False)

"""What the page's tests share: an experiment of a hostile server, its page, and that page in real browser windows."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import ROOT
from support.browser import Browser, Page, find_chromium
from support.simulated_experiment import hostile_server, outputs_of_the_experiment, write_experiment

import report


@pytest.fixture(scope="session")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "trial"
    return write_experiment(folder, outputs=outputs_of_the_experiment, edit=hostile_server)


@pytest.fixture(scope="session")
def page(experiment: Path) -> str:
    assert report.main([str(experiment)]) == 0
    return (experiment / "report.html").read_text()


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the published H200 directories, compared by this version."""
    folder = tmp_path_factory.mktemp("published") / "h200"
    stored = shutil.ignore_patterns("compare-*", "varied")
    shutil.copytree(ROOT / "results" / "h200-smollm2-135m", folder, ignore=stored)
    out = folder / "report.html"
    assert report.main([str(folder)]) == 0
    return out


@pytest.fixture(scope="session")
def browser(not_available: Callable[[str], Any]) -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        not_available("Debian's chromium (apt-get install chromium)")
    with Browser(program) as running:
        yield running


@pytest.fixture(scope="session")
def opened(browser: Browser, page: str, experiment: Path) -> Callable[[int, bool], Page]:
    """The page in a window of a width and a scheme, everything folded out, every tab kept."""
    tabs: dict[tuple[int, bool], Page] = {}

    def at(width: int, dark: bool) -> Page:
        if (width, dark) not in tabs:
            tab = browser.open(experiment / "report.html", width=width, dark=dark)
            tab.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
            tabs[width, dark] = tab
        return tabs[width, dark]

    return at

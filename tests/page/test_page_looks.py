"""How a real browser shows the page."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support import ROOT
from support.browser import Browser, Page


def luminance(color: str) -> float:
    channels = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_contrast_is_aa_in_both_schemes(scheme: int) -> None:
    sheet = (ROOT / "specbench" / "page" / "style.css").read_text()
    blocks = re.findall(r":root \{(.*?)\}", sheet, flags=re.S)
    colors = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", blocks[scheme]))
    pairs = [(front, back) for front in ("ink", "muted") for back in ("page", "panel")]
    pairs += [(kind, f"{kind}-bg") for kind in ("good", "bad", "same", "stop", "depends")]
    pairs += [(kind, "depends-bg") for kind in ("good", "bad", "same")]
    for front, back in [*pairs, ("ink", "mark"), ("base", "panel"), ("candidate", "panel")]:
        low, high = sorted((luminance(colors[front]), luminance(colors[back])))
        assert (high + 0.05) / (low + 0.05) >= 4.5, f"{front} on {back}"


WINDOWS = [(360, False), (390, True), (1440, False), (1440, True)]


@pytest.mark.parametrize(("width", "dark"), WINDOWS)
def test_nothing_is_wider_than_the_window(opened: Callable[[int, bool], Page], width: int, dark: bool) -> None:
    tab = opened(width, dark)
    assert tab.evaluate("document.documentElement.scrollWidth") == width
    outside = tab.evaluate(
        f"[...document.querySelectorAll('body *')].filter(one => !one.closest('.scroll, svg, .skip')"
        f" && one.getBoundingClientRect().right > {width}).map(one => one.outerHTML.slice(0, 80))"
    )
    assert outside == []


@pytest.mark.parametrize(("width", "dark"), WINDOWS)
def test_no_script_runs_no_request_leaves_nothing_is_reported(
    opened: Callable[[int, bool], Page], width: int, dark: bool
) -> None:
    tab = opened(width, dark)
    assert tab.evaluate("document.title") == "Should n-gram be turned on?"
    assert tab.events("Log.entryAdded") == [] and tab.events("Runtime.exceptionThrown") == []
    assert tab.events("Runtime.consoleAPICalled") == []
    urls = [event["request"]["url"] for event in tab.events("Network.requestWillBeSent")]
    assert [url.rpartition("/")[2] for url in urls] == ["report.html"]


def test_no_two_parts_share_an_id(page: str) -> None:
    """Two charts' clip paths of one name would cut each other off."""
    ids = re.findall(r'id="([^"]+)"', page)
    assert len(ids) == len(set(ids)) and any("clip" in one for one in ids)
    assert set(re.findall(r"url\(#([^)]+)\)", page)) <= set(ids)


def test_table_and_charts_are_there_and_themed(opened: Callable[[int, bool], Page]) -> None:
    light, dark = opened(1440, False), opened(1440, True)
    assert light.evaluate("document.querySelectorAll('#answer .decision tbody tr').length") == 5
    drawn = "[...document.querySelectorAll('svg.chart')].filter(one => one.getBoundingClientRect().height > 60).length"
    assert light.evaluate(drawn) >= 3 + 27 + 5 + 3 + 1 + 3
    ink = "getComputedStyle(document.querySelector('#sure svg text')).fill"
    assert light.evaluate(ink) != dark.evaluate(ink)


def test_a_screen_reader_and_a_keyboard_find_their_way(opened: Callable[[int, bool], Page]) -> None:
    tab = opened(1440, False)
    every = "[...document.querySelectorAll('{}')].every(one => {})".format
    assert tab.evaluate(every("th", "one.scope"))
    assert tab.evaluate(every("svg", "one.ariaHidden || one.ariaLabel.length > 20"))
    assert tab.evaluate(every(".scroll", "one.tabIndex === 0 && one.ariaLabel"))
    assert tab.evaluate(every("a", "document.querySelector(one.hash)"))
    # A verdict is words, never a colour or a sign alone.
    assert tab.evaluate(every(".verdict", "/[a-z]{3}/i.test(one.textContent)"))
    headings = tab.evaluate("[...document.querySelectorAll('h1, h2, h3')].map(one => one.tagName[1]).join('')")
    assert headings.startswith("12") and headings.count("1") == 1


def test_it_prints(opened: Callable[[int, bool], Page]) -> None:
    assert opened(1440, False).pdf().startswith(b"%PDF")


def test_a_link_to_a_folded_part_opens_it(browser: Browser, page: str, experiment: Path) -> None:
    tab = browser.open(experiment / "report.html", width=1280)
    assert not tab.evaluate("document.querySelector('#words').closest('details').open")
    tab.evaluate("document.querySelector('a[href=\"#words\"]').click()")
    assert tab.evaluate("document.querySelector('#words').closest('details').open")


def test_a_phone_scrolls_six_screens_and_shows_the_first_answer_at_once(
    browser: Browser, published: Path
) -> None:
    """The published experiment, as it opens: everything but the answer and what it rests on is folded."""
    tab = browser.open(published, width=390, height=844)
    assert tab.evaluate("document.documentElement.scrollHeight") <= 6 * 844
    assert tab.evaluate("document.querySelector('.answers li').getBoundingClientRect().bottom") < 844


def test_a_table_that_goes_on_beyond_the_edge_shows_it(opened: Callable[[int, bool], Page]) -> None:
    """A shadow lies under the edge, and covers that scroll with the table hide it where the table ends."""
    tab = opened(360, False)
    every = "[...document.querySelectorAll('.scroll')]"
    assert tab.evaluate(f"{every}.filter(one => one.scrollWidth > one.clientWidth).length") >= 5
    attached = "getComputedStyle(document.querySelector('#numbers .scroll')).backgroundAttachment"
    assert tab.evaluate(attached) == "local, local, scroll, scroll"

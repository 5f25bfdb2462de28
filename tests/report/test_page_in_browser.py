"""The page in a real browser: everything is drawn, nothing is fetched, all controls work, also by keyboard."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None
)
DRIVER = shutil.which("chromedriver")

pytestmark = pytest.mark.skipif(
    BROWSER is None or DRIVER is None,
    reason="no chromium with its driver was found: install them (Debian: apt-get install chromium chromium-driver)",
)

ATTEMPTS = 3  # to start the browser
PATIENCE = 60  # seconds, on a machine that is busy with other tests

WIDTHS = {"phone": 375, "small phone": 320, "desktop": 1280}
DRAWN = """
return [...document.querySelectorAll(".plot")].map((place) => {
  const marks = [...place.querySelectorAll(
    ".scatterlayer .trace path, .barlayer .point path, .heatmaplayer image, .contourlayer path")];
  const picture = place.querySelector("svg.main-svg").getBoundingClientRect();
  const box = place.getBoundingClientRect();
  return { name: place.ariaLabel, traces: (place.data || []).length, marks: marks.length,
           width: picture.width, height: picture.height, inside: picture.right <= box.right + 1 };
});
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    driver = started(tmp_path_factory)
    yield driver
    driver.quit()


def started(folders: pytest.TempPathFactory) -> Any:
    """A browser with a profile and ports of its own; a busy machine may need more than one attempt."""
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver import Chrome, ChromeOptions, ChromeService

    for attempt in range(ATTEMPTS):
        options = ChromeOptions()
        options.binary_location = BROWSER or ""
        for argument in (
            "--headless=new",
            "--no-sandbox",  # which root needs
            "--disable-dev-shm-usage",  # which is small in containers
            "--disable-gpu",
            "--no-first-run",
            f"--user-data-dir={folders.mktemp('profile')}",
        ):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        try:
            driver = Chrome(options=options, service=ChromeService(DRIVER))
        except WebDriverException:
            if attempt == ATTEMPTS - 1:
                raise
            time.sleep(1 + attempt)
            continue
        driver.set_page_load_timeout(PATIENCE)
        driver.set_script_timeout(PATIENCE)
        return driver
    raise AssertionError("unreachable")


@pytest.fixture
def opened(browser: Any, small_page: Path) -> Any:
    return open_page(browser, small_page, WIDTHS["desktop"])


def open_page(browser: Any, path: Path, width: int) -> Any:
    """Load the page anew at a width, with empty logs, and wait until all is drawn."""
    from selenium.webdriver.support.ui import WebDriverWait

    phone = width < 500
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": phone},
    )
    browser.get("about:blank")
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.get(path.as_uri())
    WebDriverWait(browser, PATIENCE, 0.05).until(
        lambda driver: driver.execute_script("return document.documentElement.dataset.drawn === 'all'")
    )
    return browser


def unfold(browser: Any) -> None:
    """Open all sections, and wait until what they hold is drawn."""
    from selenium.webdriver.support.ui import WebDriverWait

    browser.execute_script(
        "document.querySelectorAll('details.section').forEach((one) => { one.open = true; })"
    )
    undrawn = (
        "return [...document.querySelectorAll('.plot')].every((one) => one.querySelector('svg.main-svg'))"
    )
    WebDriverWait(browser, PATIENCE, 0.05).until(lambda driver: driver.execute_script(undrawn))


def requests(browser: Any) -> set[str]:
    """Addresses that the browser asked for; data inside of the page do not count."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"}
    return {address for address in asked if not address.startswith(("data:", "blob:"))}


def keys(browser: Any, *pressed: str) -> None:
    from selenium.webdriver import ActionChains

    ActionChains(browser).send_keys(*pressed).perform()


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS.keys())
def test_every_plot_is_drawn_and_nothing_is_fetched(browser: Any, page_file: Path, width: int) -> None:
    open_page(browser, page_file, width)
    unfold(browser)
    plots = browser.execute_script(DRAWN)
    assert len(plots) >= 15
    for plot in plots:
        assert plot["traces"] > 0, plot
        assert plot["marks"] > 0, plot
        assert plot["width"] > 200, plot
        assert plot["height"] > 200, plot
        assert plot["inside"], plot
        assert plot["name"], plot
    assert [entry for entry in browser.get_log("browser") if entry["level"] != "INFO"] == []
    assert requests(browser) == {page_file.as_uri()}
    wide = browser.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert wide[0] <= wide[1] == width


BOXES = """
return Object.fromEntries(Object.entries(arguments[0]).map(([name, place]) => {
  const box = document.querySelector(place).getBoundingClientRect();
  return [name, [box.left, box.top, box.right, box.bottom]];
}));
"""
PLACES = {
    "verdict": ".patient .verdict",
    "curve": ".first .outcome .plot svg.main-svg",
    "cause": ".first .cause",
    "cure": ".first .cure > .statement",
    "code": ".first .cure .code .bar",
}


@pytest.mark.slow
def test_the_first_screen_holds_verdict_curve_cause_and_cure(browser: Any, single_page: Path) -> None:
    open_page(browser, single_page, WIDTHS["desktop"])
    boxes = browser.execute_script(BOXES, PLACES)
    for name, (left, top, right, bottom) in boxes.items():
        assert 0 <= left < right <= WIDTHS["desktop"], name
        assert 0 <= top < bottom <= 800, (name, bottom)
    ranked = list(boxes)
    for place, name in enumerate(ranked):
        for other in ranked[place + 1 :]:
            (left, top, right, bottom), (l2, t2, r2, b2) = boxes[name], boxes[other]
            assert min(right, r2) <= max(left, l2) + 1 or min(bottom, b2) <= max(top, t2) + 1, (name, other)
    small = """
      const words = [...document.querySelectorAll(":is(.verdict, .first) :is(p, dd, code, text)")];
      return words.filter((one) => one.checkVisibility() && parseFloat(getComputedStyle(one).fontSize) < 11).length;
    """
    assert browser.execute_script(small) == 0


@pytest.mark.slow
def test_the_rest_is_folded_and_opens_with_its_pictures(browser: Any, single_page: Path) -> None:
    open_page(browser, single_page, WIDTHS["desktop"])
    closed = "return document.querySelectorAll('details.section:not([open])').length"
    total = browser.execute_script("return document.querySelectorAll('details.section').length")
    assert browser.execute_script(closed) == total > 8
    browser.find_element("css selector", "nav.contents a[href$='-phase-diagram']").click()
    assert browser.execute_script(closed) == total - 1
    unfold(browser)
    assert browser.execute_script(closed) == 0
    empty = [plot for plot in browser.execute_script(DRAWN) if not plot["marks"] or plot["width"] < 200]
    assert empty == []


@pytest.mark.slow
def test_dark_and_light_change_page_and_plots(opened: Any) -> None:
    seen = []
    for _ in range(3):
        seen.append(
            opened.execute_script(
                "return [getComputedStyle(document.body).backgroundColor,"
                " getComputedStyle(document.querySelector('.plot .xtitle')).fill]"
            )
        )
        opened.find_element("id", "theme").click()
    light, dark, again = seen
    assert light == again
    assert light[0] != dark[0]
    assert light[1] != dark[1]
    assert "dark" in opened.find_element("id", "said").text.lower()


@pytest.mark.slow
def test_the_reader_s_preference_for_dark_is_followed(browser: Any, small_page: Path) -> None:
    preference = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", preference)
    open_page(browser, small_page, WIDTHS["phone"])
    background = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert all(int(part) < 60 for part in background.removeprefix("rgb(").removesuffix(")").split(","))
    assert "Light" in browser.find_element("id", "theme").text
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@pytest.mark.slow
def test_axes_turn_from_logarithmic_to_linear_and_stay_so(opened: Any) -> None:
    unfold(opened)
    button = opened.find_element("css selector", "button[data-axis=yaxis]")
    kind = "return arguments[0].closest('figure').querySelector('.plot').layout.yaxis.type"
    pressed = button.get_attribute("aria-pressed")
    before = opened.execute_script(kind, button)
    assert pressed == str(before == "log").lower()
    opened.execute_script("arguments[0].click()", button)
    opened.find_element("id", "theme").click()
    after = opened.execute_script(kind, button)
    assert {before, after} == {"log", "linear"}
    assert button.get_attribute("aria-pressed") == str(after == "log").lower()


@pytest.mark.slow
def test_code_is_copied_as_it_stands(opened: Any) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    granted = {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    opened.execute_cdp_cmd("Browser.grantPermissions", granted)
    button = opened.find_element("css selector", "#network-1 .first button.copy")
    code = opened.execute_script(
        "return arguments[0].closest('.code').querySelector('code').textContent", button
    )
    opened.execute_script("arguments[0].scrollIntoView({block: 'center'}); arguments[0].focus()", button)
    keys(opened, "\ue007")
    WebDriverWait(opened, PATIENCE, 0.05).until(lambda _: button.text == "Copied")
    copied = opened.execute_async_script(
        "const done = arguments[0]; navigator.clipboard.readText().then(done, String)"
    )
    assert copied == code != ""


@pytest.mark.slow
def test_the_keyboard_reaches_every_control_and_shows_where_it_is(opened: Any) -> None:
    tab, enter = "\ue004", "\ue007"
    expected = opened.execute_script(
        "return [...document.querySelectorAll('a, button, summary, [tabindex=\"0\"]')]"
        ".filter((one) => one.checkVisibility()).length"
    )
    where = """
      const one = document.activeElement;
      const style = getComputedStyle(one);
      const box = one.getBoundingClientRect();
      return { kind: one.tagName, text: one.textContent.slice(0, 40), outline: style.outlineStyle,
               seen: box.right > 0 && box.bottom > 0 && box.top < innerHeight };
    """
    keys(opened, tab)
    assert "Skip" in opened.execute_script(where)["text"]
    reached = 1
    for _ in range(expected + 5):
        here = opened.execute_script(where)
        if here["kind"] == "BODY":
            break
        assert here["outline"] != "none", here
        keys(opened, tab)
        reached += 1
    assert reached - 1 == expected
    unfold(opened)
    card = opened.find_element("css selector", "details.card:not([open]) > summary")
    opened.execute_script("arguments[0].focus()", card)
    keys(opened, enter)
    assert opened.execute_script("return arguments[0].parentElement.open", card)


@pytest.mark.slow
def test_the_skip_link_leads_past_the_contents(opened: Any) -> None:
    keys(opened, "\ue004", "\ue007")
    assert opened.execute_script("return document.activeElement.id || location.hash") in (
        "content",
        "#content",
    )


@pytest.mark.slow
def test_on_paper_everything_is_open_and_light(opened: Any) -> None:
    opened.find_element("id", "theme").click()
    closed = "return document.querySelectorAll('details:is(.section, .card):not([open])').length"
    before = opened.execute_script(closed)
    assert before > 0
    opened.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    assert opened.execute_script(closed) == 0
    assert opened.execute_script("return document.documentElement.dataset.theme") == "light"
    opened.execute_script("window.dispatchEvent(new Event('afterprint'))")
    assert opened.execute_script(closed) == before
    assert opened.execute_script("return document.documentElement.dataset.theme") == "dark"
    printed = opened.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert len(printed["data"]) > 50_000


def test_without_scripts_texts_and_numbers_are_there(browser: Any, small_page: Path) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(small_page.as_uri())
        shown = browser.find_element("tag name", "main").text
        assert "which are switched off here" in shown
        assert "All treatments" in shown
        assert not any(one.is_displayed() for one in browser.find_elements("css selector", ".plot, button"))
        browser.find_element("css selector", "figure summary").send_keys("\ue007")
        assert browser.find_element("css selector", "figure table").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_what_users_write_is_never_run(opened: Any) -> None:
    assert "<script>alert" in opened.find_element("css selector", "#network-2 h2").text
    scripts = "return [...document.querySelectorAll('#content script')].map((one) => one.type)"
    assert set(opened.execute_script(scripts)) == {"application/json"}  # data, which no browser runs

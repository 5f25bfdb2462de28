"""The notebook view of every result in a real browser, with scripts and without."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.results.examples import EXAMPLES, example

from foretrain.support.answers import html

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")

pytestmark = pytest.mark.skipif(not (BROWSER and DRIVER), reason="needs chromium and chromedriver")
FEW = list(EXAMPLES)[:4]


@pytest.fixture(params=[True, False], ids=["with scripts", "without scripts"])
def browser(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    monkeypatch.setattr(html, "_WITH_PLOTLY", [])  # the page is a new notebook
    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    for argument in (
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path / 'profile'}",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    if not request.param:
        options.add_experimental_option("prefs", {"profile.managed_default_content_settings.javascript": 2})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.scripts = request.param  # type: ignore[attr-defined]
    yield driver
    driver.quit()


@pytest.mark.parametrize("names", [pytest.param(FEW), pytest.param(list(EXAMPLES), marks=pytest.mark.slow)])
def test_a_reader_sees_every_result(browser: Any, names: list[str], tmp_path: Path) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    page = tmp_path / "notebook.html"
    views = "".join(
        f'<div class="cell" id="cell-{i}">{example(n)._repr_html_()}</div>' for i, n in enumerate(names)
    )
    page.write_text(f"<!DOCTYPE html><meta charset='utf-8'><title>Notebook</title>{views}", encoding="utf-8")
    browser.get(page.as_uri())
    drawn = ".foretrain:has([data-panel])"
    if browser.scripts:
        count = len(browser.find_elements(By.CSS_SELECTOR, drawn))
        wait = WebDriverWait(browser, 120)
        wait.until(lambda b: len(b.find_elements(By.CSS_SELECTOR, ".foretrain[data-drawn]")) == count)
        assert not [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
    for place, name in enumerate(names):
        cell = browser.find_element(By.ID, f"cell-{place}")
        assert cell.is_displayed()
        assert len(cell.text) > 20, f"{name} shows no text"
        for panel in cell.find_elements(By.CSS_SELECTOR, "[data-panel]"):
            assert panel.is_displayed() == browser.scripts, name
        for still in cell.find_elements(By.CSS_SELECTOR, "img.still"):
            assert still.is_displayed() != browser.scripts, name
            assert int(still.get_property("naturalWidth")) > 100

"""The report as a whole: its files, what it says of failures, that it repeats to the byte, and how a browser shows it."""

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import sample_records as sample

from ctld_lab.records import write_json
from ctld_lab.report import build, tidy
from ctld_lab.report import page as report_page
from ctld_lab.report.sections import TEMPLATES
from ctld_lab.report.tables import final_table

OWN_SCRIPT = (TEMPLATES / "page.js").read_text(encoding="utf-8")
pytestmark = pytest.mark.xdist_group("report")  # the sample is built once


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("studies")
    sample.write_all(root)
    build(root)
    return root


@pytest.fixture(scope="module")
def page(root):
    return (root / "report.html").read_text(encoding="utf-8")


class Outline(HTMLParser):
    """Anchors, links, and what the page would fetch."""

    def __init__(self):
        super().__init__()
        self.ids, self.links, self.sources, self.tags = [], [], [], set()

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.tags.add(tag)
        self.ids += [found["id"]] if "id" in found else []
        self.links += [found["href"]] if "href" in found else []
        self.sources += [found["src"]] if "src" in found else []


def outline(page):
    found = Outline()
    found.feed(page)
    return found


def test_sections_are_in_the_order_of_the_paper(page):
    assert outline(page).ids == ["sda", "charrnn", "sensitivity", "timing", "double-well"]


def test_page_needs_nothing_else(page):
    """One script, which is our own to the byte: the policy has its digest, and allows no other."""
    assert outline(page).sources == []
    (script,) = re.findall(r"<script[^>]*>(.*?)</script>", page, re.DOTALL)
    assert script == OWN_SCRIPT
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1]
    assert policy == f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert not re.search(r"url\((?!#)|@import|fetch\(|XMLHttp|https?:(?!//www.w3.org/2000/svg)", page)
    assert len(page) < 3_000_000


def test_links_lead_to_files_and_sections(root, page):
    found = outline(page)
    for link in found.links:
        if link.startswith("#"):
            assert link[1:] in found.ids
        elif link != "data:,":
            assert (root / link).stat().st_size > 50, link
    figures = {path.stem for path in (root / "figures").iterdir()}
    assert {
        "sda-curves",
        "charrnn-curves-tuned",
        "sensitivity-surface",
        "timing-ratios",
        "double-well-theorem",
    } <= figures
    assert not list(root.rglob("*.unfinished"))


def test_tables_can_be_read_again(root):
    for path in sorted((root / "tables").iterdir()):
        assert len(tidy.read(path)) > 10, path


def test_what_records_say_cannot_become_markup(page):
    assert "<script" not in page.replace(f"<script>{OWN_SCRIPT}</script>", "")
    assert "&lt;script&gt;alert(&#39;evil&#39;)&lt;/script&gt; &amp; &#34;quoted&#34;" in page


def test_failures_and_gaps_are_on_the_page(page):
    assert "adam-tuned-seed2" in page
    assert "2 of 3 seeds, 1 failed" in page
    assert "58 of 60 runs done, 1 failed, 1 started" in page


def test_provenance_is_on_the_page(page):
    for words in ("0123456789ab", "3a2b55e0c0ff", "torch 2.13.0", "ctld run sda --scale laptop", "1.99 / 1.91"):
        assert words in page, words


def test_repeats_to_the_byte_and_without_torch(root, tmp_path):
    """In another process, with another order of hashes."""
    script = (
        "import sys; from pathlib import Path; from ctld_lab.report import build; "
        "build(Path(sys.argv[1]), Path(sys.argv[2])); print('torch' in sys.modules)"
    )
    command = [sys.executable, "-W", "error", "-c", script, str(root), str(tmp_path / "again")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONHASHSEED": "7"}
    )
    assert done.stdout.strip() == "False"
    written = [path for path in (tmp_path / "again").rglob("*") if path.is_file() and path.name != "study.json"]
    files = {path.relative_to(tmp_path / "again") for path in written}
    assert len(files) > 10
    for file in files:
        assert (tmp_path / "again" / file).read_bytes() == (root / file).read_bytes(), file


def test_studies_that_are_empty_broken_or_unknown(tmp_path):
    for name in ("sda", "charrnn", "sensitivity", "timing", "double-well", "<b>unheard</b>"):
        sample.describe(tmp_path / re.sub(r"\W", "", name), name, title=name, methods=["sgd", "ctld"])
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "study.json").write_text("{")
    page = build(tmp_path).read_text(encoding="utf-8")
    assert len(outline(page).ids) == 7
    assert page.count('class="problem"') == 1
    assert "<b>unheard" not in page


def test_a_broken_record_costs_its_own_section(tmp_path):
    """A point of the grid without its σ, a description that is no object: the box names it, other sections stand."""
    sample.write_timing(tmp_path / "timing")
    study = sample.write_sensitivity(tmp_path / "sensitivity", seeds=1)
    run = next(run for run in study.runs() if run.name.startswith("grid"))
    write_json(run.path / "config.json", run.config() | {"point": {"w": 1.0}})
    directory = sample.describe(tmp_path / "charrnn", "charrnn")
    write_json(directory.path / "study.json", directory.description() | {"paper": 3})
    page = build(tmp_path).read_text(encoding="utf-8")
    assert outline(page).ids == ["charrnn", "sensitivity", "timing"]
    (box,) = re.findall(r'<p class="problem">(.*?)</p>', page)
    assert "study.json is not as it should be (paper is 3, not an object); correct it" in box


@pytest.mark.parametrize("error", [ValueError("so"), TypeError("so"), KeyError("so")])
def test_our_own_bugs_are_raised_as_bugs(tmp_path, monkeypatch, error):
    """Records are refused where they are read; whatever fails later is not called a broken record."""

    def broken(study):
        raise error

    sample.describe(tmp_path / "sda", "sda")
    monkeypatch.setitem(report_page.CONTENTS, "sda", broken)
    with pytest.raises(type(error), match="so"):
        build(tmp_path)


def test_what_a_terminal_would_obey_is_not_passed_on(tmp_path):
    study = sample.write_sda(tmp_path / "sda", methods=("sgd", "ctld"), seeds=1, wrong=False)
    record = study.description() | {
        "title": "a\x1b[31mb\x07",
        "titles": {"sgd": "\x1b]0;x\x07SGD"},
        "commands": ["\x9b2J"],
    }
    write_json(study.path / "study.json", record)
    study.run("ctld-tuned-seed0").write("failure.json", {"error": "\x1b[2J"})
    (study.run("ctld-tuned-seed0").path / "result.json").unlink()
    page = build(tmp_path).read_text(encoding="utf-8")
    assert "a\\x1b[31mb" in page
    tables = [path.read_text(encoding="utf-8") for path in (tmp_path / "tables").iterdir()]
    for text in (page, *tables, *(row.title for row in final_table(study))):
        assert all(letter.isprintable() or letter in "\n\u00a0" for letter in text)


def test_no_study_at_all(tmp_path):
    assert "No study was found." in build(tmp_path / "nothing").read_text(encoding="utf-8")


def test_a_study_can_be_given_itself_and_the_same_study_twice(tmp_path):
    sample.write_timing(tmp_path / "a")
    sample.write_timing(tmp_path / "b")
    assert build(tmp_path / "a") == tmp_path / "a" / "report.html"
    assert outline(build(tmp_path, tmp_path / "out").read_text(encoding="utf-8")).ids == ["a", "b"]
    assert (tmp_path / "out" / "figures" / "b-ratios.svg").exists()
    assert not list((tmp_path / "a").rglob("*/study.json"))  # only another directory is one to publish


# ---- in a browser ----

MEASURE = """
document.querySelectorAll('details').forEach(details => { details.open = true; });
const boxes = [...document.querySelectorAll('svg')].map(e => {
  const box = e.getBoundingClientRect();
  return [e.getAttribute('aria-label'), box.width, box.height, box.right];
});
return {boxes, page: document.documentElement.scrollWidth, window: window.innerWidth,
  fetched: performance.getEntriesByType('resource').map(e => e.name).filter(name => !name.startsWith('data:')),
  page_colour: getComputedStyle(document.body).backgroundColor,
  ink: getComputedStyle(document.querySelector('.panel .title')).fill};
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """Headless Chromium. In continuous integration it has to be there."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (binary and driver) and "CI" not in os.environ:
        pytest.skip("chromium and chromedriver are not installed (Debian: apt-get install chromium chromium-driver)")
    assert binary, "chromium is not installed"
    assert driver, "chromedriver is not installed"
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    profile = tmp_path_factory.mktemp("profile")
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", f"--user-data-dir={profile}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    session = webdriver.Chrome(options=options, service=Service(driver))
    yield session
    session.quit()


def show(browser, root, width=1280, scheme="light"):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    wish = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", wish)
    browser.get(Path(root / "report.html").as_uri())


def brightness(colour):
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_page_in_a_browser(browser, root, width, scheme):
    show(browser, root, width, scheme)
    found = browser.execute_script(MEASURE)
    assert browser.get_log("browser") == []
    assert found["fetched"] == []
    assert found["page"] <= found["window"] == width
    panels = [box for box in found["boxes"] if box[0]]
    assert len(panels) == 5 + 2 + 4 + 1 + 3 + 4
    for title, box_width, box_height, right in panels:
        assert min(box_width, box_height) >= 100, title
        assert right <= width, title
    dark = scheme == "dark"
    assert (brightness(found["page_colour"]) < 60) == dark
    assert (brightness(found["ink"]) > 200) == dark  # figures follow the scheme


STATE = """
const panel = document.querySelector('#sda .panel'), tip = panel.querySelector('.tip');
return {lines: panel.querySelectorAll('g path[stroke-width]').length, tip: tip.hidden ? '' : tip.textContent,
  ticks: [...panel.querySelectorAll('text.end')].map(text => text.textContent).join(' ')};
"""


def test_pointer_zoom_and_switches(browser, root):
    from selenium.webdriver import ActionChains

    show(browser, root)
    svg = browser.find_element("css selector", "#sda .panel svg")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", svg)
    before = browser.execute_script(STATE)
    assert before["lines"] == 6 * 4  # methods and layers
    found = {""}
    for y in range(-40, 90, 6):
        ActionChains(browser, duration=0).move_to_element_with_offset(svg, -60, y).perform()
        found.add(browser.execute_script(STATE)["tip"])
    assert any(
        re.fullmatch(r"(CTLD|SGD-M|Santa|Adam|RMSprop|AnnealSGD)\niteration: [\d,]+\nMSE: [\d.]+ \[.*\]", tip)
        for tip in found
    )
    button = browser.find_element("css selector", '#sda .legend button[data-label="Santa"]')
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert browser.execute_script(STATE)["lines"] == 5 * 4
    assert (
        browser.find_element("css selector", '#charrnn .legend button[data-label="Santa"]').get_attribute(
            "aria-pressed"
        )
        == "false"
    )
    button.click()
    drag = ActionChains(browser).move_to_element_with_offset(svg, -60, -20).click_and_hold().move_by_offset(100, 60)
    drag.release().perform()
    zoomed = browser.execute_script(STATE)["ticks"]
    assert zoomed != before["ticks"]
    ActionChains(browser).double_click(svg).perform()
    assert browser.execute_script(STATE)["ticks"] == before["ticks"]
    assert browser.get_log("browser") == []


def test_tables_sort(browser, root):
    show(browser, root)
    rows = "document.querySelector('#timing figure.table table').tBodies[0].rows"
    column = f"return [...{rows}].map(row => row.cells[1].textContent)"
    heads = browser.find_elements("css selector", "#timing figure.table thead button")
    heads[1].click()
    values = [float(text) for text in browser.execute_script(column)]
    assert values == sorted(values)
    heads[1].click()
    assert [float(text) for text in browser.execute_script(column)] == values[::-1]

"""The page in a real browser: nothing is fetched, nothing sticks out, figures are there."""

import json
import os
import re
import shutil
import subprocess
from html import unescape

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
IN_CI = os.environ.get("CI", "").lower() == "true"

pytestmark = pytest.mark.skipif(
    CHROMIUM is None and not IN_CI,
    reason="needs a browser: install chromium (Debian: apt-get install chromium)",
)

MARGIN = 16  # of the page
PHONE, DESKTOP, SHEET = 390, 1280, 688  # SHEET: what A4 leaves between its margins

# Measures the page in a frame of each width, and writes what it found where --dump-dom shows it.
SCRIPT = """
<body><script>
const widths = %s, found = [];
function height(text) {
  const m = text.getScreenCTM();
  return parseFloat(getComputedStyle(text).fontSize) * Math.hypot(m.a, m.b);
}
function look(frame, width) {
  const d = frame.contentDocument, sticking = [];
  for (const e of d.body.querySelectorAll('*')) {
    if (e.closest('.scroll, figure div, pre') && !e.matches('.scroll, figure div, pre')) continue;
    if (e.getBoundingClientRect().right > width + 0.5) sticking.push(e.tagName + '.' + e.className);
  }
  found.push({
    width, scroll: d.documentElement.scrollWidth, sticking,
    svgs: [...d.querySelectorAll('svg')].map(s => s.getBoundingClientRect()).map(r => [r.width, r.height]),
    letters: [...d.querySelectorAll('svg text')].map(height),
    fetched: frame.contentWindow.performance.getEntriesByType('resource').map(r => r.name),
  });
}
for (const width of widths) {
  const frame = document.createElement('iframe');
  frame.width = width; frame.height = 900; frame.style.border = 0;
  frame.onload = () => {
    look(frame, width);
    if (found.length === widths.length) {
      const out = document.createElement('pre');
      out.id = 'found'; out.textContent = JSON.stringify(found);
      document.body.append(out);
    }
  };
  frame.srcdoc = %s;
  document.body.append(frame);
}
</script></body>
"""


def chromium(*options, folder):
    assert CHROMIUM is not None, "CI has no chromium: .ci/run installs it"
    return subprocess.run(
        [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
            *(f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=20000", *options),
        ],
        capture_output=True,
        timeout=120,
        check=True,
    ).stdout


def measured(html, widths, folder):
    content = json.dumps(html).replace("</", "<\\/")
    (folder / "frames.html").write_text("<!doctype html><meta charset=utf-8>" + SCRIPT % (widths, content))
    shown = chromium("--dump-dom", (folder / "frames.html").as_uri(), folder=folder).decode()
    found = re.search(r'<pre id="found">(.*?)</pre>', shown, re.DOTALL)
    assert found, "the page was not measured"
    return {one["width"]: one for one in json.loads(unescape(found[1]))}


@pytest.fixture(scope="module")
def looks(page, tmp_path_factory):
    return measured(page.read_text(), [PHONE, DESKTOP], tmp_path_factory.mktemp("frames"))


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_nothing_sticks_out(looks, width):
    """Wide tables scroll inside their box; the page itself never does."""
    assert looks[width]["scroll"] == width
    assert looks[width]["sticking"] == []


@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_figures_are_there_and_legible(looks, width):
    assert len(looks[width]["svgs"]) == 11
    assert all(w > 300 and h > 100 for w, h in looks[width]["svgs"])
    assert min(looks[width]["letters"]) > 5.5  # pixels


def test_figures_fit_a_phone(looks):
    """Whole, with their legends: none is to be scrolled sideways."""
    assert max(w for w, _ in looks[PHONE]["svgs"]) <= PHONE - 2 * MARGIN


def test_nothing_is_fetched(looks):
    assert looks[PHONE]["fetched"] == looks[DESKTOP]["fetched"] == []


def test_a_page_that_sticks_out_is_noticed(page, tmp_path):
    """The test can fail."""
    wide = '<div style="width: 500px">wide</div><img src="http://localhost:9/picture.png">'
    looks = measured(page.read_text().replace('<main id="top">', f'<main id="top">{wide}'), [PHONE], tmp_path)
    assert looks[PHONE]["scroll"] > PHONE
    assert looks[PHONE]["sticking"] != []
    assert looks[PHONE]["fetched"] == ["http://localhost:9/picture.png"]


def test_print(page, tmp_path):
    """Under the print rules all fits the sheet, scrolling boxes included; and a PDF comes out."""
    printed = (
        page.read_text().replace("@media print", "@media all").replace('class="scroll"', 'class="shown"')
    )
    look = measured(printed, [SHEET], tmp_path)[SHEET]
    assert look["sticking"] == []
    chromium(f"--print-to-pdf={tmp_path / 'page.pdf'}", page.as_uri(), folder=tmp_path)
    pdf = (tmp_path / "page.pdf").read_bytes()
    assert pdf.startswith(b"%PDF")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 16

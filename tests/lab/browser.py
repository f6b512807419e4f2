"""A page in a real browser: parts that stick out, requests, and the sizes of figures and letters."""

import json
import os
import re
import shutil
import subprocess
from html import unescape

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
IN_CI = os.environ.get("CI", "").lower() == "true"

needs_browser = pytest.mark.skipif(
    CHROMIUM is None and not IN_CI,
    reason="needs a browser: install chromium (Debian: apt-get install chromium)",
)

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

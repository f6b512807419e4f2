"""The page in a real browser: nothing is fetched, nothing sticks out, figures are there."""

import re

import pytest
from browser import DESKTOP, PHONE, SHEET, chromium, measured, needs_browser

pytestmark = needs_browser

MARGIN = 16  # of the page


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

"""Cards in a real browser: no requests, nothing sticks out, everything fits on paper."""

import re

import pytest
from browser import DESKTOP, PHONE, SHEET, chromium, measured, needs_browser

pytestmark = needs_browser
KINDS = ("images", "table", "text")


@pytest.fixture(scope="module")
def looks(cards, tmp_path_factory):
    widths = [PHONE, DESKTOP]
    return {kind: measured(html, widths, tmp_path_factory.mktemp(kind)) for kind, html in cards.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_nothing_sticks_out_and_nothing_is_fetched(looks, kind, width):
    look = looks[kind][width]
    assert look["scroll"] == width
    assert look["sticking"] == []
    assert [url for url in look["fetched"] if not url.startswith("data:")] == []


@pytest.mark.parametrize("kind", KINDS)
def test_figures_are_there_and_legible(looks, kind):
    for look in looks[kind].values():
        assert len(look["svgs"]) == 3
        assert all(w > 300 and h > 100 for w, h in look["svgs"])
        assert min(look["letters"]) > 5.5  # pixels


@pytest.mark.parametrize("kind", KINDS)
def test_print(cards, kind, tmp_path):
    html = cards[kind].replace("@media print", "@media all").replace('class="scroll"', 'class="shown"')
    look = measured(html, [SHEET], tmp_path)[SHEET]
    assert look["sticking"] == []
    (tmp_path / "card.html").write_text(cards[kind])
    page = (tmp_path / "card.html").as_uri()
    chromium(f"--print-to-pdf={tmp_path / 'card.pdf'}", page, folder=tmp_path)
    pdf = (tmp_path / "card.pdf").read_bytes()
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 5


def test_a_card_that_sticks_out_is_noticed(cards, tmp_path):
    wide = '<main><div style="width: 500px">wide</div><img src="http://localhost:9/picture.png">'
    look = measured(cards["table"].replace("<main>", wide), [PHONE], tmp_path)[PHONE]
    assert look["scroll"] > PHONE
    assert look["fetched"] == ["http://localhost:9/picture.png"]

"""The page as a file: whole, safe, the same each time."""

import json
import re
import shutil
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from made_results import changed, publish

from jacnorm.lab.claims import FAILS, HOLDS, OPEN, UNTESTED, Outcome
from jacnorm.lab.cli import main
from jacnorm.lab.report.content import Sentence, collect
from jacnorm.lab.report.editorial import commands
from jacnorm.lab.report.page import to_html
from jacnorm.lab.reproduce.catalog import all_items, find_items, question, read_item, with_numbers
from jacnorm.lab.sweep.experiment import read_experiment

EXPERIMENTS = Path(__file__).parents[3] / "paper"
KMNIST = EXPERIMENTS / "table1-kmnist" / "experiment.toml"
DIGITS = EXPERIMENTS / "quick" / "table1-digits.toml"
VOID = {"meta", "br", "link", "img", "input", "hr"}


class Reader(HTMLParser):
    """Checks that tags are closed in order, and keeps what is of interest."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.links, self.tags = [], [], [], Counter()
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        self._keep(attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self._keep(attrs)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def _keep(self, attrs):
        for name, value in attrs:
            if name == "id":
                self.ids.append(value)
            if name in ("href", "src", "xlink:href", "action", "srcset", "data"):
                self.links.append(value)


@pytest.fixture(scope="module")
def text(page):
    return page.read_text()


@pytest.fixture(scope="module")
def reader(text):
    return Reader(text)


def test_it_is_whole(text, reader):
    assert text.startswith("<!doctype html>")
    # In short, table 1, figures 3, 4, 5, readings, deviations.
    assert reader.tags["table"] == 1 + 4 + 2 + 1 + 2 + 2 + 1
    assert reader.tags["svg"] == 1 + 5 + 3 + 2
    for heading in ("Table 1, KMNIST", "Figure 3, KMNIST", "Figure 4, KMNIST", "Figure 5, LeNet on KMNIST"):
        assert f">{heading}</h2>" in text
    for heading in ("Does what the paper says hold?", "What deviates", "Environment", "How to rerun"):
        assert heading in text


def test_it_needs_nothing_else(text, reader):
    assert reader.tags["script"] == reader.tags["link"] == reader.tags["img"] == 0
    assert all(link.startswith("#") for link in reader.links)
    assert "@import" not in text
    assert re.findall(r"url\((?!#)", text) == []
    spaces = set(re.findall(r"https?://[^\s\"'<]+", text))
    assert spaces <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}  # names, not addresses


def test_ids_are_unique_and_links_lead_somewhere(text, reader):
    assert [name for name, times in Counter(reader.ids).items() if times > 1] == []
    wanted = {link[1:] for link in reader.links} | set(re.findall(r"url\(#([^)]+)\)", text))
    assert wanted <= set(reader.ids)


def test_it_tells_protocol_stages_and_what_is_not_there(text):
    stages = "Two-stage screening: 84 settings, 1 seed, 10 epochs; then the best of each method, 5 seeds, 50"
    assert text.count(stages) == 1
    whose = "About the networks that were chosen in “Table 1, KMNIST”: two-stage screening by the loss on the"
    assert text.count(whose) == 3
    assert text.count("Protocol “paper”") >= 4
    banner = re.search(r"Not run yet:</strong> (.*?)</p>", text).group(1)
    assert "Table 1, CIFAR10" in banner
    assert "Figure 4, FashionMNIST" in banner
    assert "digits" not in banner
    assert "torch 2.13.0" in text
    assert "with jacnorm 0.1.0:" in text  # that ran it, whichever version draws the page


def test_how_to_rerun_names_the_folder_of_these_results(results, text):
    where = f"--results {results}"
    assert f"jacnorm reproduce all --data kmnist {where}\njacnorm report {where}" in text
    items = find_items(EXPERIMENTS, "all", "digits")
    assert commands(items, None) == ("jacnorm reproduce all --data digits", "jacnorm report")
    quick = Path("runs/quick")
    assert commands(items, quick) == ("jacnorm reproduce all --quick", f"jacnorm report --results {quick}")


def test_a_figure_of_an_own_table_trains_what_it_needs(tmp_path):
    for name in ("mine", "other"):
        (tmp_path / f"{name}.toml").write_text(OWN)
    figure = 'figure = 4\ntitle = "Distances"\nnetworks = "mine"\n[measure]\nimages = 20\n'
    (tmp_path / "distances-mine.toml").write_text(figure)
    items = all_items(tmp_path)
    assert [item.name for item in items] == ["mine", "distances-mine", "other"]
    assert commands(items, None)[:-1] == (
        f"jacnorm sweep {tmp_path / 'other.toml'}",
        f"jacnorm reproduce {tmp_path / 'distances-mine.toml'}",
    )


def test_a_figure_of_our_own_about_the_papers_networks_has_its_own_command():
    check = "epsilon-fashion-mnist"
    of = {item.name: item for item in all_items(EXPERIMENTS)}
    papers, ours = of["figure3-fashion-mnist"], of[check]
    assert (papers.is_papers, ours.is_papers) == (True, False)
    assert commands([papers, ours], None) == (
        "jacnorm reproduce all --data fashion-mnist",
        f"jacnorm reproduce {EXPERIMENTS / 'checks' / check}.toml",
        "jacnorm report",
    )


def test_how_much_screening_saves_is_counted(text):
    """84 settings of 10 epochs and 6 methods with 5 seeds of 50, of 84 settings with 5 seeds of 50 epochs."""
    assert round(100 * (84 * 10 + 6 * 5 * 50) / (84 * 5 * 50)) == 11
    assert "11 % of the work" in text


def test_only_what_the_paper_says_stands_among_its_claims(results, tmp_path, monkeypatch):
    """Not our own questions, nor what digits tell: four of table 1, 18, four and five of figures 3 to 5, and
    one of them for two sentences. All others stand with the numbers that they are about.
    """
    shutil.copytree(results, tmp_path / "results")
    digits = read_experiment(DIGITS, tmp_path / "results")
    publish(digits.results, digits.screening_runs()[0], 90.0)
    monkeypatch.setattr("jacnorm.lab.report.content.drawings", lambda section: ())  # they take seconds
    of = {data: find_items(EXPERIMENTS, "all", data, tmp_path / "results") for data in ("kmnist", "digits")}
    content = collect([*of["kmnist"], *of["digits"]])
    of = {part.chapter.title: part for part in content.sections}
    assert digits.title in of
    assert sum(len(sentence.verdicts) for sentence in content.sentences) == 4 + 18 + 4 + 5 + 1
    assert len(of["Table 1, KMNIST"].own_claims) == 8
    assert len(of["Figure 3, KMNIST"].own_claims) == 4
    shown = to_html(content)
    theirs = shown[shown.index('id="claims"') : shown.index('id="judging"')]
    assert theirs.count('class="evidence"') == 4 + 18 + 4 + 5 + 1
    ours = shown.index(of["Table 1, KMNIST"].own_claims[0][1].text)
    assert shown.index('id="table1-kmnist"') < ours < shown.index('id="figure3-kmnist"')


def test_what_several_figures_say_of_one_sentence_stands_together(results, monkeypatch):
    monkeypatch.setattr("jacnorm.lab.report.content.drawings", lambda section: ())
    content = collect(find_items(EXPERIMENTS, "all", "kmnist", results))
    (sentence,) = (s for s in content.sentences if "despite its large regions" in s.words)
    assert [where for where, _ in sentence.verdicts] == [*["Figure 3, KMNIST"] * 3, "Figure 4, KMNIST"]
    assert all(sentence.words.startswith("“") for sentence in content.sentences)


def test_each_sentence_is_told_in_short_first():
    outcomes = [HOLDS, OPEN, FAILS, HOLDS, FAILS]
    several = Sentence("“x”", tuple(("Table 1", Outcome("t", outcome, "e")) for outcome in outcomes))
    assert [number for _, number in several.tally] == ["2 hold", "2 do not hold", "1 cannot be told"]
    one = Sentence("“x”", (("Table 1", Outcome("t", HOLDS, "e")), ("Table 1", Outcome("t", UNTESTED, "e"))))
    assert one.tally == ((HOLDS, "1 holds"), (UNTESTED, "1 not tested"))


def test_the_short_form_is_on_both_pages(text, page):
    words = "“all regularization methods achieve similarly sized regions for KMNIST” (section 4.2.3)"
    assert re.search(rf"{re.escape(words)}</span>\s+<span><span class=\"outcome (\S+)\">1 ", text)
    assert f"\n| {words} | 1 " in (page.parent / "reproduction.md").read_text()


def test_a_quick_look_counts_no_claims(tmp_path):
    experiment = read_experiment(DIGITS, tmp_path)
    for config in experiment.screening_runs():
        publish(experiment.results, config, 90.0)
    content = collect(find_items(EXPERIMENTS, "all", "digits", tmp_path))
    assert content.quick
    assert content.title == "Exact Spectral Norm Regularization: a quick look"
    assert to_html(content).count("reproduces the paper") == 1  # said once
    assert content.sentences == ()
    assert "Does what the paper says hold?" not in to_html(content)


def test_it_is_the_same_each_time(results, text):
    items = [
        item for name in ("table1", "figure4") for item in find_items(EXPERIMENTS, name, "kmnist", results)
    ]
    sections = collect(items, results, EXPERIMENTS).sections
    again = [drawing.svg for section in sections for drawing in section.drawings]
    assert len(again) > 2
    assert all(svg in text for svg in again)


def test_what_files_say_is_shown_as_text(tmp_path):
    """Even if someone writes a result or an experiment to break the page."""
    folder = tmp_path / "experiments"
    folder.mkdir()
    (folder / "table1-digits.toml").write_text('title = "<script>alert(1)</script>"\n[grid]\nseed = [0]')
    experiment = read_experiment(folder / "table1-digits.toml")
    experiment.results.write_text('{"id": "<b>"}\n')
    publish(experiment.results, experiment.runs[0], 90.0)
    newer = json.dumps({"version": 7, "id": "x"}).replace("7", '"<b>"')
    experiment.results.write_text(experiment.results.read_text() + newer + "\n")
    shown = to_html(collect(all_items(folder)))
    assert "<script>" not in shown
    assert "<b>" not in shown
    assert "&lt;script&gt;alert(1)" in shown
    assert "of version &lt;b&gt;" in shown


def test_skipped_files_are_named_on_the_page_and_on_the_terminal(results, tmp_path, capsys):
    experiment = read_experiment(KMNIST, tmp_path)
    for run in experiment.screening_runs()[:2]:
        publish(experiment.results, run, 90.0)
    newer = changed(experiment.results, run, lambda line: json.dumps({"version": 7, "id": run.id}))
    options = [str(KMNIST), "--results", str(tmp_path)]
    assert main(["report", *options, "--out", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().err.startswith(f"warning: {newer}: of version 7")
    assert f"{newer}: of version 7" in (tmp_path / "page.html").read_text()


def test_a_sweep_that_has_only_begun_is_not_a_reproduction(tmp_path):
    experiment = read_experiment(KMNIST, tmp_path)
    for config in experiment.screening_runs()[:17]:
        publish(experiment.results, config, 90.0)
    content = collect(find_items(EXPERIMENTS, "table1", results=tmp_path))
    assert content.absent == ["Table 1, FashionMNIST", "Table 1, CIFAR10"]
    assert content.title == "Exact Spectral Norm Regularization: not reproduced yet"
    assert content.under_way == [("Table 1, KMNIST", "17 of 84 screening runs")]
    found = [verdict.outcome for sentence in content.sentences for _, verdict in sentence.verdicts]
    assert found == ["not tested"] * 4
    shown = to_html(content)
    assert "<li>Table 1, KMNIST (17 of 84 screening runs)</li>" in shown


def test_training_is_counted_once_and_without_the_time_that_it_stood_still(tmp_path):
    files = (KMNIST, EXPERIMENTS / "checks" / "batch-kmnist.toml")
    experiments = [read_experiment(file, tmp_path) for file in files]
    shared = next(run for run in experiments[1].screening_runs() if run in experiments[0].screening_runs())
    slept = '"seconds": [60.0, 9000.0, 61.0]'
    for experiment in experiments:
        publish(experiment.results, shared, 90.0)
        changed(experiment.results, shared, lambda line: line.replace('"seconds": [60.0]', slept))
    content = collect([read_item(file, tmp_path) for file in files])
    assert len(content.sections) == 2
    assert content.trained == "1 network trained for a few epochs to choose settings"
    assert content.time == "3 minutes"


OWN = """
title = "Mine"
[grid]
method = ["none", "weight-decay"]
seed = [0, 1]
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """An own experiment in an own folder, its runs done."""
    monkeypatch.chdir(tmp_path)
    Path("my.toml").write_text(OWN)
    for config in read_experiment(Path("my.toml")).runs:
        publish(Path("my.jsonl"), config, 90.0 + config.seed + (config.method == "weight-decay"))


def test_a_page_of_an_own_experiment(mine, capsys):
    assert main(["report", "my.toml", "--markdown", "my.md"]) == 0
    assert capsys.readouterr().out == "my.html: a table\n"
    assert main(["report", "my.toml"]) == 0
    assert capsys.readouterr().out == "my.html: a table, replaces the earlier file\n"
    shown, text = Path("my.html").read_text(), Path("my.md").read_text()
    Reader(shown)
    assert "<h1>Mine</h1>" in shown
    assert text.startswith("# Mine\n")
    assert "\n## Results\n" in text
    assert "## Mine" not in text  # which is the page's title already
    assert shown.count("Mine</h") == 1
    assert "\n\n\n" not in text
    assert "jacnorm sweep my.toml\njacnorm report my.toml" in shown
    assert "| none | 2 | 90.50 ± 0.71 | 2.00 ± 0.00 |" in text
    for page in (shown, text):
        for theirs in ("reproduce", "Claims", "Does what", "Strannegård", "difference", "deviates"):
            assert theirs not in page


def test_an_own_experiment_beside_the_papers_is_found_by_its_content(mine, tmp_path):
    (tmp_path / "my.toml").rename(tmp_path / "table.toml")
    (tmp_path / "my.jsonl").rename(tmp_path / "table.jsonl")
    assert main(["report", "--experiments", "."]) == 0
    assert "<h1>Mine</h1>" in (tmp_path / "report.html").read_text()


def test_a_page_lies_beside_its_results(mine, tmp_path, capsys):
    """So that a quick look does not replace another page."""
    (tmp_path / "runs" / "quick").mkdir(parents=True)
    (tmp_path / "my.jsonl").rename(tmp_path / "runs" / "quick" / "my.jsonl")
    assert main(["report", "--experiments", ".", "--results", "runs/quick"]) == 0
    assert (tmp_path / "runs" / "quick" / "report.html").exists()
    assert not (tmp_path / "report.html").exists()


def test_a_sweep_ends_with_its_table_and_the_next_command(mine, monkeypatch, capsys):
    monkeypatch.setattr("jacnorm.lab.sweep.pool.LocalPool.run_all", lambda self, configs, watch: watch([]))
    assert main(["sweep", "my.toml"]) == 0
    told = capsys.readouterr().out
    assert "none          2  90.50 ± 0.71  2.00 ± 0.00" in told
    assert told.endswith("\nAs a page: jacnorm report my.toml\n")


def test_markdown_says_the_same(page):
    text = (page.parent / "reproduction.md").read_text()
    assert "\n## Table 1, KMNIST\n" in text
    assert "\n| method | n | ours | paper | difference | in s.e. | σ |\n| :-- | --: |" in text
    assert "Two-stage screening: 84 settings" in text
    assert "<" not in re.sub(r' < |<a id="[a-z0-9-]+"></a>', "", text)
    assert "\n\n\n" not in text
    pictures = re.findall(r"\]\((reproduction/[^)]+\.svg)\)", text)
    assert len(pictures) == 11
    for picture in pictures:
        assert "</svg>" in (page.parent / picture).read_text()


def test_links_of_markdown_lead_somewhere(page):
    text = (page.parent / "reproduction.md").read_text()
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    named = re.findall(r'^<a id="(.+)"></a>$', text, re.MULTILINE)
    slugs = [re.sub(r"[^a-z -]", "", heading.lower()).replace(" ", "-") for heading in headings]
    links = re.findall(r"\]\(#(.+?)\)", text)
    assert set(links) <= {*named, *slugs}
    assert len(links) >= len(headings)  # the contents, and from claims to how they are judged


REMARKS = """# Is weight decay better? Yes, by a little.
remarks = '''
On all
of it: {accuracy: weight-decay - none}, {-accuracy: none - weight-decay} and {accuracy@../my: none},
σ < {sigma%: weight-decay}.

In short.
'''"""


def test_remarks_with_computed_numbers_go_where_the_numbers_go(mine, tmp_path, capsys):
    mine = tmp_path / "checks" / "more.toml"
    mine.parent.mkdir()
    mine.write_text(REMARKS + OWN)
    for config in read_experiment(mine).runs:
        publish(
            mine.with_suffix(".jsonl"), config, 80.0 + config.seed + 0.5 * (config.method == "weight-decay")
        )
    told = "On all of it: 0.50, 0.50 and 90.50, σ < 200."
    assert main(["report", str(mine), "--markdown", "my.md"]) == 0
    assert f"<p>{told.replace('<', '&lt;')}</p>\n<p>In short.</p>" in Path("more.html").read_text()
    assert f"\n\n{told}\n\nIn short.\n" in Path("my.md").read_text()
    assert main(["reproduce", str(mine), "--reuse-only"]) == 0
    assert f"\n\n{told}\n\nIn short.\n" in capsys.readouterr().out
    assert question(mine) == ("Is weight decay better?", "Yes, by a little.")
    mine.write_text(REMARKS.replace("weight-decay - none", "weight-decay - nune") + OWN)
    assert main(["report", str(mine)]) == 2
    assert "{accuracy: weight-decay - nune}: accuracy is not known of 'nune'" in capsys.readouterr().err


def test_numbers_of_what_is_not_there_are_left_open(mine, tmp_path):
    file = tmp_path / "my.toml"
    assert with_numbers("{accuracy: weight-decay}", file, lambda name: {}) == "–"
    nothing = {
        "accuracy": pd.DataFrame(columns=["weight-decay", "none"], dtype=float),
        "paper": pd.DataFrame(),
    }
    text = "{accuracy: weight-decay - none}, {accuracy%: weight-decay}, {paper: weight-decay}"
    assert with_numbers(text, file, lambda name: nothing) == "–, –, –"


CLAIM = """
[[claims]]
text = "Weight decay is better"
more = "weight-decay"
less = "none"
"""
SHORT = """
[[summary]]
outcome = "OUTCOME"
claims = ["my: Weight decay is better"]
text = "By {accuracy@my: weight-decay - none}: [there](checks/README.md#my), [elsewhere](checks/README.md#x)."
"""


@pytest.mark.parametrize("outcome", ["holds", "does not hold"])
def test_a_sentence_stands_only_while_its_claims_come_out_so(mine, outcome, tmp_path, capsys):
    Path("my.toml").write_text(OWN.replace("[0, 1]", "[0, 1, 2]") + CLAIM)
    for seed in range(3):
        for config in read_experiment(Path("my.toml")).runs:
            if config.seed == seed:
                publish(Path("my.jsonl"), config, 90 + (1 + 0.01 * seed) * (config.method == "weight-decay"))
    Path("page.toml").write_text(SHORT.replace("OUTCOME", outcome))
    assert main(["report", "--experiments", "."]) == 0
    stands = 'By 1.01: <a href="#my">there</a>, elsewhere.' in Path("report.html").read_text()
    assert stands == (outcome == "holds")
    warned = (
        "'my: Weight decay is better' and others: not all of them does not hold" in capsys.readouterr().err
    )
    assert warned == (not stands)


def test_each_check_of_ours_begins_with_its_question_and_its_answer():
    for file in (EXPERIMENTS / "checks").glob("*.toml"):
        asked, answer = question(file)
        assert asked.endswith("?"), file
        assert answer.endswith("."), file


def test_the_paper_is_a_few_files():
    files = [file for file in EXPERIMENTS.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    assert len(files) < 100


def test_pages_of_a_folder(results, tmp_path):
    """Their links and pictures lead somewhere, and each is told of on the first."""
    where = ["--results", str(results), "--experiments", str(EXPERIMENTS)]
    assert main(["report", *where, "--out", str(tmp_path / "x.html"), "--markdown", str(tmp_path)]) == 0
    pages = {page.relative_to(tmp_path): page.read_text() for page in tmp_path.rglob("*.md")}
    names = ("table1-kmnist", "figure3-kmnist", "figure4-kmnist", "figure5-kmnist", "checks", "future")
    there = ("README.md", "readings.md", "claims.md", "statistics.md", "deviations.md")
    root = [Path(name) for name in there]
    assert set(pages) == {*root, *(Path(name) / "README.md" for name in names)}
    for page, text in pages.items():
        for link in re.findall(r"\]\(([^)#]+)", text):
            if "docs/" not in link:
                assert (tmp_path / page.parent / link).exists(), (page, link)
        assert "\n\n\n" not in text
    front = pages[Path("README.md")]
    assert front.count("figure.svg") == 3
    assert "| spectral | 96.61 ± 0.14 | 96.1" in front
    assert len(front.splitlines()) < 70


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--results", "nowhere"], "nowhere: there is no such folder; jacnorm sweep and reproduce make it"),
        (["--results", "empty", "--experiments", str(EXPERIMENTS / "quick")], "no results of"),
        (["--results", "empty", "--experiments", "nowhere"], "run this in a checkout"),
        (["nowhere.toml", "--results", "empty"], "nowhere.toml: there is no such file"),
    ],
)
def test_mistakes_are_told_in_one_line(options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert main(["report", "--experiments", str(EXPERIMENTS), *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1

"""What of the site is made from other sources when it is built."""

import json
import os
import re
from argparse import ArgumentParser
from base64 import b64decode
from pathlib import Path
from textwrap import indent

from mkdocs.structure.files import File

MADE_ELSEWHERE = ("benchmarks/index.md",)  # by a command; not there before it has run
NOTEBOOK = re.compile(r"\]\(\.\./notebooks/([\w-]+)\.ipynb\)")
SCRIPT = re.compile(r"^\[([\w/]+\.(py|toml))\]\((?:\.\./)+\1\)$", re.MULTILINE)


def on_config(config):
    for section in config.nav:
        for title, pages in section.items():
            if isinstance(pages, list):
                section[title] = [page for page in pages if _is_there(page, Path(config.docs_dir))]


def on_files(files, config):
    files.append(File.generated(config, "changelog.md", content=Path("CHANGELOG.md").read_text("utf-8")))
    files.append(File.generated(config, "commands.md", content=commands()))
    for page in sorted(Path("paper").glob("**/*.md")):
        content = re.sub(r"\]\(((?:\.\./)+)docs/", r"](\1", page.read_text("utf-8"))
        files.append(File.generated(config, str(page), content=content))
    for picture in sorted(Path("paper").glob("**/*.svg")):
        files.append(File.generated(config, str(picture), abs_src_path=str(picture.absolute())))
    for notebook in sorted(Path("notebooks").glob("*.ipynb")):
        text, pictures = shown_notebook(notebook)
        files.append(File.generated(config, f"notebooks/{notebook.stem}.md", content=text))
        for name, content in pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))


def on_page_markdown(markdown, page, **kwargs):
    """A link to a script, on a line of its own, becomes it; paper/ and notebooks/ are among the pages."""
    if "/" not in page.file.src_uri:
        markdown = markdown.replace("](../paper/", "](paper/")
        markdown = NOTEBOOK.sub(r"](notebooks/\1.md)", markdown)
    return SCRIPT.sub(lambda match: _shown(match[1], match[2]), markdown)


def _shown(path, language):
    code = f"```{language}\n{Path(path).read_text('utf-8')}```"
    return f'??? example "{path}"\n\n{indent(code, "    ")}\n'


def _is_there(page, folder):
    (path,) = page.values()
    return path not in MADE_ELSEWHERE or (folder / path).exists()


def shown_notebook(path):
    """A notebook with the outputs that it keeps, as Markdown, and its pictures by name."""
    parts, pictures = [], {}
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            if "text" in output:
                parts.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
            elif "image/png" in output["data"]:
                name = f"{path.stem}-{len(pictures) + 1}.png"
                pictures[name] = b64decode(output["data"]["image/png"])
                parts.append(f"![What the code above draws]({name})")
    parts.append(f"*This page is the notebook `{path}` of a checkout.*")
    return "\n\n".join(parts).replace("](../docs/", "](../"), pictures


def commands():
    """What `jacnorm --help` and each command's say."""
    from jacnorm.lab.cli import make_parser

    os.environ["COLUMNS"] = "88"  # argparse looks there
    parser = make_parser()
    (subparsers,) = parser._subparsers._group_actions
    parts = ["# Command line", _help(parser)]
    for name, command in subparsers.choices.items():
        parts += [f"## jacnorm {name}", _help(command)]
    return "\n\n".join(parts)


def _help(parser: ArgumentParser):
    return f"```text\n{parser.format_help().strip()}\n```"

"""Docstrings are plain text, made to be read in a terminal. This makes Markdown of them."""

import re

import griffe

OPTION = re.compile(r"^(\w[\w, ]*)\n((?:    .*\n)+)", re.MULTILINE)
EXAMPLE = re.compile(r"^>>> (?:.+\n?)+", re.MULTILINE)
CODE = re.compile(r"(```.*?```|`[^`\n]+`)", re.DOTALL)


class PlainText(griffe.Extension):
    def on_object(self, *, obj, **kwargs):
        if obj.docstring:
            obj.docstring.value = to_markdown(obj.docstring.value)


def to_markdown(text):
    """An option and its indented text become a definition, and >>> a code block."""
    text = OPTION.sub(lambda m: f"\n`{m[1]}`\n:   {m[2].strip()}\n\n", text + "\n")
    text = EXAMPLE.sub(lambda m: f"```pycon\n{m[0].rstrip()}\n```\n", text)
    parts = CODE.split(text)
    parts[::2] = map(_mathematics, parts[::2])
    return "".join(parts)


def _mathematics(text):
    """x_i, ‖J‖_F and W^l with their letters lowered or raised; other signs as they are."""
    text = re.sub(r"_([ilF]\b|\{[^}]+\})", lambda m: f"<sub>{m[1].strip('{}')}</sub>", text)
    text = re.sub(r"\^([lL])\b", r"<sup>\1</sup>", text)
    return re.sub(r"([_*])", r"\\\1", text)

"""Docstrings as Markdown: they are written as plain text, where <ss>, K_ab and x*y mean themselves."""

from __future__ import annotations

import re

CODE = re.compile(r"(``.+?``|`[^`\n]+`)")
ROLE = re.compile(r":(?:func|class|meth|mod|attr):(`)")
COLUMNS = re.compile(r"^(``[^`]+``(?:, ``[^`]+``)*)  +(.*)$")
EXAMPLE = re.compile(r"^>>> .*(?:\n.+)*", re.MULTILINE)  # up to an empty line
SECTION = re.compile(r"^(\w+)\n-{3,}\n", re.MULTILINE)
DIRECTIVE = re.compile(r"[ \t]*# doctest:.*$", re.MULTILINE)  # tells the test what to leave out
PARAMETER = re.compile(r"^(\w.*)\n((?:    .*\n?|\n(?=    ))+)", re.MULTILINE)


def as_markdown(docstring: str) -> str:
    """Prose with its markup escaped, parameters as a list, examples as code."""
    pieces = SECTION.split(DIRECTIVE.sub("", docstring))
    parts = [_prose(pieces[0])]
    for title, body in zip(pieces[1::2], pieces[2::2], strict=True):
        if title == "Parameters":
            parts.append(_parameters(body))
        elif title == "Examples":
            parts.append(f"```pycon\n{body.strip()}\n```\n")
        else:
            parts.append(f"**{title}**\n\n{_prose(body)}")
    return "\n".join(parts)


def _parameters(body: str) -> str:
    """A list of the parameters; what follows them without being indented is prose again."""
    parts, start = [], 0
    for entry in PARAMETER.finditer(body):
        parts += [_prose(body[start : entry.start()])] if body[start : entry.start()].strip() else []
        names = ", ".join(f"`{name.strip()}`" for name in entry.group(1).split(","))
        parts.append(f"- {names}: {_escaped(' '.join(entry.group(2).split()))}")
        start = entry.end()
    return "\n".join(parts) + "\n\n" + _prose(body[start:])


def _prose(text: str) -> str:
    """Columns become lists, examples code, and everything else means itself."""
    lines, in_list = [], False
    for line in EXAMPLE.sub(_indented, text).split("\n"):
        columns = COLUMNS.match(line)
        if columns:
            lines += [] if in_list else [""]
            lines.append(f"- {columns.group(1)}: {_escaped(columns.group(2))}")
            in_list = True
        elif in_list and line.startswith(" "):
            lines.append(f"  {_escaped(line.strip())}")
        else:
            in_list = False
            lines.append(line if line.startswith("    ") else _escaped(line))
    return "\n".join(lines)


def _indented(example: re.Match[str]) -> str:
    return "\n" + re.sub(r"^", "    ", example.group(0), flags=re.MULTILINE)


def _escaped(text: str) -> str:
    pieces = CODE.split(ROLE.sub(r"\1", text))
    return "".join(piece if number % 2 else _plain(piece) for number, piece in enumerate(pieces))


def _plain(text: str) -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\*_\[\]$])", r"\\\1", text)

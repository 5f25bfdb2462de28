"""A process that runs the code of one page: cells come in as JSON, what they print and draw goes out as JSON."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import sys
import traceback
from typing import Any

NOTEBOOKS = "tutorials/"  # pages whose results are shown as in a notebook
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def main() -> int:
    """Run the cells in one namespace; stop at the first error, with exit code 1."""
    request = json.load(sys.stdin)
    names: dict[str, Any] = {"__name__": "__main__"}
    answers = []
    for number, code in enumerate(request["cells"], start=1):
        try:
            answers.append(_run(code, f"<cell {number}>", names, request["page"].startswith(NOTEBOOKS)))
        except Exception:
            print(f"cell {number} of {request['page']}:\n{code}\n{traceback.format_exc()}", file=sys.stderr)
            return 1
    json.dump(answers, sys.stdout)
    return 0


def _run(code: str, name: str, names: dict[str, Any], notebook: bool) -> dict[str, Any]:
    tree = ast.parse(code, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    figures: list[Any] = []
    shown = ""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, name, "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), name, "eval"), names)
            if type(value).__name__ == "Figure":
                figures.append(value)
            elif notebook and hasattr(value, "answer"):  # a result of foretrain, as a notebook shows it
                shown = value._repr_html_()
            elif value is not None:
                print(repr(value))
    text = printed.getvalue().replace(os.getcwd(), ".")  # the folder is another one in every run
    if ADDRESS.search(text):
        raise ValueError("the answer holds an address in memory, which is another one in every run.")
    return {"text": text, "html": shown, "figures": [_drawn(figure) for figure in figures + _open_figures()]}


def _open_figures() -> list[Any]:
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return []
    figures = [pyplot.figure(number) for number in pyplot.get_fignums()]
    pyplot.close("all")
    return figures


def _drawn(figure: Any) -> str:
    import matplotlib

    matplotlib.rcParams["svg.hashsalt"] = "foretrain"  # the same drawing is the same file
    target = io.StringIO()
    figure.savefig(target, format="svg", metadata={"Date": None}, bbox_inches="tight")
    return target.getvalue()


if __name__ == "__main__":
    sys.exit(main())

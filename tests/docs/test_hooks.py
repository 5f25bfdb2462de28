import pytest

pytest.importorskip("latex2mathml", reason="the tools of the documentation are not installed (make docs)")
pytest.importorskip("griffe", reason="the tools of the documentation are not installed (make docs)")

from breaks import with_breaks
from mathematics import FormulaError, with_formulas
from plain_text import as_markdown


def inline(latex: str) -> str:
    return rf'<span class="arithmatex">\({latex}\)</span>'


def test_formulas_become_mathml() -> None:
    assert with_formulas("page", inline("K^{(1)}")).count("<math") == 1
    shown = with_formulas("page", '<div class="arithmatex">\\[x &lt; y\\]</div>')
    assert 'display="block"' in shown
    assert "arithmatex" not in shown


@pytest.mark.parametrize("latex", [r"\nosuchthing x", r"\begin{aligned}a&=b\end{aligned}"])
def test_unknown_commands_stop_the_build(latex: str) -> None:
    with pytest.raises(FormulaError, match="page"):
        with_formulas("page", inline(latex))


def test_long_code_in_tables_breaks_between_words() -> None:
    table = "<td>a_b <code>tests/a_long_name.py::test_of_it&lt;x&gt;</code> <code>a_b.c</code></td>"
    shown = with_breaks(f"<code>tests/a_long_name.py::test_of_it</code>{table}")
    assert shown.startswith("<code>tests/a_long_name.py::test_of_it</code><td>a_b <code>")
    assert (
        "<code>tests/<wbr>a_<wbr>long_<wbr>name.<wbr>py::<wbr>test_<wbr>of_<wbr>it&lt;x&gt;</code>" in shown
    )
    assert "<code>a_b.c</code>" in shown


def test_plain_text_means_itself() -> None:
    assert as_markdown("C_W <s's'> x*y ``a_b``") == "C\\_W &lt;s's'> x\\*y ``a_b``"
    assert as_markdown("see :func:`flow`") == "see `flow`"


def test_columns_and_parameters_are_lists_and_examples_code() -> None:
    parameters = "Parameters\n----------\nx, y\n    Numbers a_b,\n    many.\n\n"
    docstring = f"Head.\n\n{parameters}After.\n\nExamples\n--------\n>>> 1 * 1\n1\n"
    assert as_markdown(docstring) == (
        "Head.\n\n\n- `x`, `y`: Numbers a\\_b, many.\n\n\nAfter.\n\n\n```pycon\n>>> 1 * 1\n1\n```\n"
    )
    assert (
        as_markdown("``a``   first\n        more\n``b``   second\n")
        == "\n- ``a``: first\n  more\n- ``b``: second\n"
    )


def test_what_is_meant_for_the_test_of_an_example_is_not_shown() -> None:
    shown = as_markdown("Says.\n\nExamples\n--------\n>>> run()  # doctest: +SKIP\n>>> 1  # one\n1\n")
    assert "```pycon\n>>> run()\n>>> 1  # one\n1\n```" in shown


def test_examples_are_code_without_a_heading_too() -> None:
    shown = as_markdown("Says.\n\n>>> f(a_b)\n1\n\nMore_text.")
    assert shown == "Says.\n\n\n    >>> f(a_b)\n    1\n\nMore\\_text."

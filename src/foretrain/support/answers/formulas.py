"""Formulas in TeX ($...$ in labels) as letters and tags, where no typesetter is at hand; numbers in words."""

from __future__ import annotations

import html
import math
import re
from typing import Any

_LETTERS = dict(
    pair.split()
    for pair in (
        "alpha α|beta β|gamma γ|delta δ|epsilon ε|varepsilon ε|zeta ζ|eta η|theta θ|kappa κ|lambda λ|mu μ|nu ν|xi ξ|"
        "pi π|rho ρ|sigma σ|tau τ|phi φ|varphi φ|chi χ|psi ψ|omega ω|Gamma Γ|Delta Δ|Theta Θ|Lambda Λ|Xi Ξ|Pi Π|"
        "Sigma Σ|Phi Φ|Psi Ψ|Omega Ω|ell ℓ|infty ∞|to →|rightarrow →|times ×|cdot ·|pm ±|leq ≤|le ≤|geq ≥|ge ≥|"
        "approx ≈|sim ∼|simeq ≃|propto ∝|equiv ≡|neq ≠|ne ≠|ll ≪|gg ≫|partial ∂|nabla ∇|sum ∑|prod ∏|int ∫|in ∈|"
        "parallel ∥|perp ⊥|langle ⟨|rangle ⟩|ldots …|dots …|star *|ast *|dagger †|mid ||otimes ⊗|circ ∘"
    )
    .replace("mid ||", "mid ∣|")
    .split("|")
)
_RAISED = str.maketrans("0123456789+-−()n*'", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁽⁾ⁿ*′")
_LOWERED = str.maketrans("0123456789+-−()aehijklmnoprstuvx", "₀₁₂₃₄₅₆₇₈₉₊₋₋₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ")
_OPEN, _CLOSE = "\ue000", "\ue001"  # stand for braces that are printed


def unicode_math(text: str) -> str:
    """Words with formulas, all in plain letters: $\\\\Theta^2/n$ becomes Θ²/n."""
    return re.sub(r"\$([^$]*)\$", lambda formula: _plain(formula[1]), text)


def html_math(text: str) -> str:
    """The same with raised and lowered letters as tags; what else looks like a tag is written out."""
    parts = re.split(r"\$([^$]*)\$", text)
    written = (
        _tagged(part) if place % 2 else html.escape(part, quote=False) for place, part in enumerate(parts)
    )
    return "".join(written).replace("\n", "<br>")


def number_text(value: Any, digits: int = 3) -> str:
    """A number in a sentence: three digits that count, powers of ten where it is very large or very small."""
    number = float(value)
    if not math.isfinite(number):
        return "not known" if math.isnan(number) else "∞" if number > 0 else "−∞"
    if number and not 1e-3 <= abs(number) < 1e5:
        return power_text(f"{number:.{digits - 1}e}")
    if number == int(number):
        text = f"{number:,.0f}"
    else:
        text = f"{number:,.{max(0, digits - 1 - math.floor(math.log10(abs(number))))}f}"
    return text.replace("-", "−")


def power_text(text: str) -> str:
    """A number as Python writes it, with its power of ten as people do: 1.5e-07 becomes 1.5 × 10⁻⁷."""
    factor, _, power = text.partition("e")
    return f"{factor} × 10{str(int(power)).translate(_RAISED)}".replace("-", "−")


def _letters(formula: str) -> str:
    """Without commands: letters, fractions as a/b, roots as √(a)."""
    formula = formula.replace(r"\{", _OPEN).replace(r"\}", _CLOSE)
    formula = re.sub(r"\\[,;! ]|\\quad", " ", formula)
    formula = re.sub(r"\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}", r"\1/\2", formula)
    formula = re.sub(r"\\sqrt\{([^{}]*)\}", r"√(\1)", formula)
    formula = re.sub(r"\\(?:math\w+|text\w*|hat|bar|tilde|wide\w+|operatorname)\{([^{}]*)\}", r"\1", formula)
    formula = re.sub(r"\\(?:left|right|big|Big|limits)(?![a-z])", "", formula)
    return re.sub(r"\\([A-Za-z]+) ?", lambda command: _LETTERS.get(command[1], command[1]), formula)


def _plain(formula: str) -> str:
    def move(table: dict[int, int], sign: str, group: re.Match[str]) -> str:
        inner = group[1] or group[2] or ""
        return inner.translate(table) if all(ord(letter) in table for letter in inner) else f"{sign}{inner}"

    text = re.sub(r"\^(?:\{([^{}]*)\}|(.))", lambda group: move(_RAISED, "^", group), _letters(formula))
    return _without_braces(re.sub(r"_(?:\{([^{}]*)\}|(.))", lambda group: move(_LOWERED, "_", group), text))


def _tagged(formula: str) -> str:
    text = html.escape(_letters(formula), quote=False)
    text = re.sub(r"\^(?:\{([^{}]*)\}|(.))", lambda group: f"<sup>{group[1] or group[2]}</sup>", text)
    return _without_braces(
        re.sub(r"_(?:\{([^{}]*)\}|(.))", lambda group: f"<sub>{group[1] or group[2]}</sub>", text)
    )


def _without_braces(text: str) -> str:
    return text.replace("{", "").replace("}", "").replace(_OPEN, "{").replace(_CLOSE, "}")

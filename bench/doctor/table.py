"""The tables: one line for a case, and how often the doctor is right, with intervals, by family."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from bench.doctor.examination import CURED, FAILED, HARMED, HEALTHY, ILL, LATE, NOTHING, REFUSED, SAME, Result
from bench.doctor.training import Proof

Z = 1.96  # of an interval that holds the share in 19 cases of 20


def wilson(hits: int, total: int) -> tuple[float, float]:
    """Wilson's interval of a share; from 0 to 1 where nothing was counted."""
    if not total:
        return 0.0, 1.0
    share, weight = hits / total, 1 + Z**2 / total
    centre = (share + Z**2 / (2 * total)) / weight
    half = Z * math.sqrt(share * (1 - share) / total + Z**2 / (4 * total**2)) / weight
    return max(0.0, centre - half), min(1.0, centre + half)


# What is counted, among which results, and which of them hit. Where the doctor breaks off without a diagnosis it has
# neither named a cause nor called anything healthy; it counts as a false alarm of a healthy setup.
RATES: dict[str, tuple[Callable[[Result], bool], Callable[[Result], bool]]] = {
    "faults not called healthy": (lambda r: r.faulty, lambda r: r.outcome in (ILL, REFUSED)),
    "cause in the first finding": (lambda r: r.faulty, lambda r: r.first),
    "cause in any finding": (lambda r: r.faulty, lambda r: r.anywhere),
    "healthy with a complaint": (lambda r: not r.faulty, lambda r: r.complaint),
    "healthy not called healthy": (lambda r: not r.faulty, lambda r: r.outcome != HEALTHY),
    "cures that are better": (lambda r: r.cure in (CURED, SAME, HARMED), lambda r: r.cure == CURED),
    "cures that are worse": (lambda r: r.cure in (CURED, SAME, HARMED), lambda r: r.cure == HARMED),
    "faults that are cured": (lambda r: r.faulty and bool(r.cure), lambda r: r.cure == CURED),
}


def share(results: Sequence[Result], rate: str) -> tuple[int, int]:
    """Hits and total of one of the rates."""
    among, hit = RATES[rate]
    counted = [result for result in results if among(result)]
    return sum(hit(result) for result in counted), len(counted)


def confusion(results: Sequence[Result]) -> str:
    """Outcomes by truth, rates with their intervals, and the rates of every family."""
    outcomes = (HEALTHY, ILL, REFUSED, FAILED, LATE)
    lines = [f"{'':24}" + "".join(f"{outcome:>9}" for outcome in outcomes)]
    for faulty, name in ((True, "faults"), (False, "healthy setups")):
        counts = [sum(r.faulty == faulty and r.outcome == outcome for r in results) for outcome in outcomes]
        lines.append(f"{name:24}" + "".join(f"{count:9}" for count in counts))
    split_headlines = sum(not result.agrees for result in results)
    if split_headlines:
        lines.append(f"headline and .healthy differ in {split_headlines}")
    lines.append("")
    for rate in RATES:
        hits, total = share(results, rate)
        if total:
            low, high = wilson(hits, total)
            lines.append(f"{rate:28}{hits:4} of {total:4}  {hits / total:4.0%}  [{low:.0%}, {high:.0%}]")
    nothing = sum(result.cure == NOTHING for result in results)
    if nothing:
        lines.append(f"{'plans without a treatment':28}{nothing:4}")
    times = sorted(result.seconds for result in results)
    if times:
        lines.append(
            f"seconds: median {times[len(times) // 2]:.1f}, longest {times[-1]:.1f}, all {sum(times):.0f}"
        )
    lines += ["", f"{'family':18}{'seen':>9}{'first':>9}{'any':>9}{'complaint':>11}{'not healthy':>13}"]
    for family in dict.fromkeys(result.family for result in results):
        own = [result for result in results if result.family == family]
        cells = [share(own, rate) for rate in list(RATES)[:5]]
        texts = [f"{hits}/{total}" if total else "" for hits, total in cells]
        lines.append(
            f"{family:18}" + "".join(f"{text:>{size}}" for text, size in zip(texts, (9, 9, 9, 11, 13)))
        )
    return "\n".join(lines)


def line_of(result: Result, fault: str | None) -> str:
    """One case: what is wrong, and what was said of it."""
    named = " first" if result.first else " any" if result.anywhere else " no cause"
    verdict = f"{result.outcome}{'' if result.agrees else '?'}{named if result.faulty else ''}"
    right = result.outcome in (ILL, REFUSED) if result.faulty else result.outcome == HEALTHY
    cure = f"\n    cure: {result.cure} {result.cure_numbers}".rstrip() if result.cure else ""
    return (
        f"{'+' if right else '-'} {result.name}: {fault or 'healthy'}\n"
        f"    {verdict}, {result.seconds:.1f} s | {result.finding}{cure}"
    )


def proof_line(proof: Proof) -> str:
    """Score and loss on held-out data of a case, and of its repaired twin."""
    twin = "" if proof.twin is None else f"   repaired {proof.twin.score:6.3f} {proof.twin.loss:10.3g}"
    kind = "fault  " if proof.case.fault else "healthy"
    mark = "ok" if proof.holds else "NO"
    return f"{mark} {kind} {proof.case.name:48} {proof.own.score:6.3f} {proof.own.loss:10.3g}{twin}"

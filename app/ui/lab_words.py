"""The words of the teacher-forcing lab: for each step a title, three plain sentences, formulas.

The sentences carry the numbers of the picture beside them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from app.ui import format as fmt
from kronos_core.evaluation.exposure import ExposureGap, Fork, SequenceProbability
from kronos_core.evaluation.guess import Guess

STEPS = ("Guess", "Product", "Logs", "Fork", "True past", "Own past", "Dial")
TITLES = (
    "One bar ahead",
    "Many bars are a product",
    "Logs make it a sum",
    "Two ways to go on",
    "The truth all the way",
    "Its own tokens all the way",
    "The dial between the two",
)
FORMULAS = (
    (
        r"p(s_1, s_2 \mid \text{past}) = p(s_1 \mid \text{past}) \; p(s_2 \mid \text{past}, s_1)",
        r"H = -\sum_v p(v) \ln p(v) \qquad e^{H} = \text{the number of equal choices}",
    ),
    (r"p(\text{bars } 1 \dots H) = \prod_{h=1}^{H} p(s_1^h, s_2^h \mid \text{bars before } h)",),
    (
        r"-\ln p(\text{bars } 1 \dots H) = \sum_{h=1}^{H} \left[ -\ln p(s_1^h \mid \cdot)"
        r" - \ln p(s_2^h \mid \cdot, s_1^h) \right]",
        r"\text{loss} = \tfrac{1}{2H} \times \text{this sum: the mean of s1 and s2 that the "
        r"curves of a run show}",
    ),
    (
        r"p(\cdot \mid \text{context}, x_1) \quad \text{or} \quad p(\cdot \mid \text{context}, "
        r"\hat{x}_1), \qquad \hat{x}_1 \sim p(\cdot \mid \text{context})",
    ),
    (r"\ell_h^{\text{true}} = -\ln p(x_h \mid \text{context}, x_1, \dots, x_{h-1})",),
    (
        r"\ell_h^{\text{own}} = -\ln p(x_h \mid \text{context}, \hat{x}_1, \dots, \hat{x}_{h-1})",
        r"\text{gap}_h = \ell_h^{\text{own}} - \ell_h^{\text{true}}",
    ),
    (
        r"\tilde{x}_h = \begin{cases} x_h & \text{with chance } \varepsilon \\ \hat{x}_h & "
        r"\text{otherwise} \end{cases}",
        r"\text{gap}_h(\varepsilon) = \mathbb{E}\left[-\ln p(x_h \mid \tilde{x}_{<h})\right] - "
        r"\ell_h^{\text{true}}",
    ),
)


@dataclass(frozen=True, slots=True)
class Text:
    """Three sentences."""

    sentences: tuple[str, str, str]


def guess(found: Guess) -> Text:
    choices = math.exp(found.entropy)
    return Text(
        (
            "The model reads every bar as two tokens, a coarse s1 and a fine s2, and gives each "
            "token that might come next a chance; the circles show at which close the likeliest "
            "ones would put the next bar.",
            f"The chances are spread as widely as over {choices:,.0f} equally likely coarse tokens "
            f"out of {len(found.p_all):,}.",
            f"The bar that really came has the coarse token {found.true_s1}, number {found.rank:,} "
            f"of the list with a chance of {_chance(found.p_true_s1)}; given that one, its fine "
            f"token had {_chance(found.p_true_s2)}.",
        )
    )


def product(found: SequenceProbability) -> Text:
    best = int(found.loss.argmin())
    bars = len(found.s1)
    return Text(
        (
            "Going bar by bar, the model only ever states the chance of the next one, each time "
            "knowing all bars before it.",
            f"Bar {best + 1} surprised it least: {_chance(float(np.exp(-found.loss[best])))} for "
            "its two tokens together.",
            f"All {bars} bars together have the product of these chances, about 1 in "
            f"10{_superscript(-found.log10_probability)}: tiny, although no single bar was absurd.",
        )
    )


def logs(found: SequenceProbability) -> Text:
    worst = int(found.loss.argmax())
    mean = found.total / (2 * len(found.s1))
    coarse = float(found.s1_loss.sum()) / found.total
    return Text(
        (
            "Instead of multiplying small numbers one adds up their −log: a sure token costs "
            "nothing, an unlikely one costs a lot.",
            f"The stretch costs {found.total:.1f} nats, {fmt.percent(coarse)} of them for the "
            f"coarse tokens; bar {worst + 1} alone costs {found.loss[worst]:.1f}.",
            f"Per token that is {mean:.2f} nats, the very loss that fine-tuning makes smaller and "
            "that the Runs page draws.",
        )
    )


def parting(branches: Fork, after_true: Guess, after_own: Guess) -> Text:
    own, true = branches.own, branches.true
    same = own.s1[0, 0] == true.true_s1[0]
    overlap = float(np.minimum(after_true.p_all, after_own.p_all).sum())
    drawn = "drew the true coarse token" if same else "drew another coarse token than the true one"
    return Text(
        (
            "After the first bar there are two ways to go on: show the model what really happened, "
            "or let it read what it drew itself.",
            f"Here it {drawn}: {own.s1[0, 0]} beside {true.true_s1[0]}.",
            f"From there on it expects different things: the chances of the second bar overlap by "
            f"{fmt.percent(overlap)} between the two branches.",
        )
    )


def true_past(branches: Fork) -> Text:
    walk = branches.true
    hits, bars = int((walk.s1[0] == walk.true_s1).sum()), len(walk.true_s1)
    mean = float((walk.s1_loss[0] + walk.s2_loss[0]).mean())
    return Text(
        (
            "Teacher forcing: whatever the model guessed, the next bar is predicted from the true "
            "past, so that every stroke starts again on the true line.",
            f"It drew the true coarse token at {hits} of {fmt.plural(bars, 'bar')}, and yet it "
            "never strays, since no mistake is ever read again.",
            f"The truth costs {mean:.2f} nats per bar; all bars can be learned from at once, which "
            "is why training of this kind is fast and steady.",
        )
    )


def own_past(branches: Fork, shown: int, decimals: int) -> Text:
    walk = branches.own
    wrong = np.flatnonzero((walk.s1[0] != walk.true_s1)[:shown])
    first = f"at bar {wrong[0] + 1}" if len(wrong) else "nowhere so far"
    gap = (branches.s1_gap + branches.s2_gap)[:shown]
    close = branches.own_prices[shown - 1, 3], branches.known_prices[shown - 1, 3]
    return Text(
        (
            "Now the model reads only what it drew itself, as it must when it forecasts; its first "
            f"coarse token that differs from the truth comes {first}.",
            "Each later bar is predicted from a past that did not happen: at bar "
            f"{shown} its close is {fmt.price(close[0], decimals)} where the truth has "
            f"{fmt.price(close[1], decimals)}.",
            f"Over these {fmt.plural(shown, 'bar')} the truth costs "
            f"{_more(float(gap.mean()))} per bar than on the true past: that is the exposure gap "
            "of this one stretch.",
        )
    )


def dial(found: ExposureGap, epsilon: float) -> Text:
    nearest = int(np.abs(found.epsilons - epsilon).argmin())
    s1, s2 = found.s1_gap[nearest], found.s2_gap[nearest]
    quarter = max(1, len(s1) // 4)
    near, far = float(s1[:quarter].mean()), float(s1[-quarter:].mean())
    moral = (
        "what grows with the distance from the origin is what mistakes add to mistakes."
        if far > near + 0.05
        else "on these bars mistakes do not pile up with the distance."
    )
    return Text(
        (
            f"With ε = {found.epsilons[nearest]:g} each bar of the past is the true one with that "
            "chance and the model's own otherwise; fine-tuning can turn this dial while it runs.",
            f"The truth then costs {_more(float(s1.mean()))} for s1 and {_more(float(s2.mean()))} "
            f"for s2, means over {fmt.plural(found.origins, 'origin')} with "
            f"{fmt.plural(found.walks, 'walk')} each.",
            f"For s1 the gap is {near:.2f} nats in the first {fmt.plural(quarter, 'bar')} and "
            f"{far:.2f} in the last: {moral}",
        )
    )


def _chance(value: float) -> str:
    if value >= 0.001:
        return f"{100 * value:.2g} %"
    return f"1 in {1 / value:,.0f}" if value > 0 else "nearly none"


def _superscript(value: float) -> str:
    return f"{value:.0f}".translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _more(nats: float) -> str:
    return f"{abs(nats):.2f} nats {'more' if nats >= 0 else 'less'}"

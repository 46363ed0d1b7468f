"""How an uploaded file is read: told in words, asked where two readings fit, and changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pandas as pd
import streamlit as st

from app.ui import components
from app.ui import format as fmt
from kronos_core.data.bars import CHANNELS
from kronos_core.data.choices import DATE_ORDERS, ROLES, AmbiguityError, ReadingChoices
from kronos_core.data.dialects import Reading
from kronos_core.data.findings import QualityReport

DELIMITERS = {",": "Comma", ";": "Semicolon", "\t": "Tab", "|": "Bar", " ": "Space"}
DECIMALS = {".": "Point: 1,234.5", ",": "Comma: 1.234,5"}
ENCODINGS = ("utf-8", "utf-16", "gb18030", "cp1252", "latin-1")
UNITS = {"s": "Seconds", "ms": "Milliseconds", "us": "Microseconds", "ns": "Nanoseconds"}
PRICES = {"raw": "Raw", "adjusted": "Adjusted"}
ORDERS: dict[str, str] = {order: words.capitalize() for order, words in DATE_ORDERS.items()}
MAIN_ROLES = ("timestamps", *CHANNELS)
OTHER_ROLES = tuple(role for role in ROLES if role not in MAIN_ROLES)
ROLE_WORDS = {"timestamps": "time"}
DETECT = "Detect"


@dataclass(slots=True)
class Draft:
    """An uploaded file while it is decided how to read it.

    choices: what the person chose; the rest is detected. turn: how often it was read. One of
    readings, question and problem says how that ended. reports: on the series looked at.
    """

    name: str
    key: str
    choices: ReadingChoices = field(default_factory=ReadingChoices)
    turn: int = 0
    stale: bool = True
    readings: list[Reading] | None = None
    question: AmbiguityError | None = None
    problem: str = ""
    lines: list[str] = field(default_factory=list)
    reports: dict[int, QualityReport] = field(default_factory=dict)
    saved: list[str] = field(default_factory=list)

    def forget(self) -> None:
        """Drops what was read before."""
        self.readings, self.question, self.problem, self.stale = None, None, "", False
        self.lines, self.reports = [], {}

    def choose(self, choices: ReadingChoices) -> None:
        """Has the file read with other choices, and the page drawn again."""
        self.choices, self.stale, self.turn = choices, True, self.turn + 1
        st.rerun()


def told(made: ReadingChoices) -> str:
    """The choices of a reading in words."""
    parts = [
        f"{_word(DELIMITERS, made.delimiter)} between columns" if made.delimiter else "",
        made.encoding.upper() if made.encoding else "",
        {".": "decimal point", ",": "decimal comma"}.get(made.decimal or "", ""),
        _header_words(made.header_line),
        f"dates {DATE_ORDERS[made.date_order]}" if made.date_order else "",
        f"times in {made.timezone}" if made.timezone else "",
        f"{made.prices} prices" if made.prices else "",
        f"volume × {made.volume_factor:g}" if made.volume_factor else "",
        f"amount × {made.amount_factor:g}" if made.amount_factor else "",
    ]
    return " · ".join(part for part in parts if part)


def _word(words: Mapping[str, str], value: str) -> str:
    return words.get(value, repr(value)).lower()


def _header_words(line: int | None) -> str:
    if line is None:
        return ""
    return f"titles in line {line}" if line else "no titles"


def provenance(reading: Mapping[str, Any]) -> dict[str, str]:
    """How a stored dataset was read, as names and values; empty for what came from no file."""
    if not reading:
        return {}
    made = ReadingChoices.from_dict(reading["choices"])
    used = {role: title for role, title in (made.columns or {}).items() if title}
    columns = ", ".join(f"{title} → {ROLE_WORDS.get(role, role)}" for role, title in used.items())
    facts = {
        "Dialect": reading["dialect"],
        "Part of the file": reading["member"],
        "Read with": told(made),
        "Columns": columns,
    }
    return {name: value for name, value in facts.items() if value}


def raw_table(reading: Reading, rows: int, columns: int, key: str) -> None:
    """The first rows of the file, under each title what it is used as."""
    head = reading.head.iloc[:rows, :columns].copy()
    titles: list[str] = []
    for title in map(str, head.columns):
        role = reading.columns.get(title) or reading.columns.get(title.strip())
        role = ROLE_WORDS.get(role or "", role)
        titles.append(_unused(f"{title} → {role}" if role else title, titles))
    head.columns = pd.Index(titles)
    st.dataframe(head, key=key, hide_index=True, alt="First rows of the file, as text")


def _unused(title: str, taken: Sequence[str]) -> str:
    """A title that no other column of the table has: the browser wants them different."""
    title = title or "(no title)"
    while title in taken:
        title += " "
    return title


def ask(draft: Draft) -> None:
    """Both readings of an ambiguous file side by side, to choose from."""
    assert draft.question
    st.markdown(f":material/help: **{fmt.plain(draft.name)}** can be read in more than one way")
    st.warning(fmt.plain(str(draft.question)))
    readings = draft.question.readings
    for place, column in enumerate(st.columns(len(readings), border=True)):
        reading = readings[place]
        label, _, example = reading.sentence.partition(": ")
        with column:
            st.markdown(f"**{fmt.plain(label)}**: {fmt.plain(example)}")
            st.dataframe(
                _with_short_times(reading.rows),
                key=f"{draft.key}-ask-{place}",
                hide_index=True,
                alt=reading.sentence,
            )
            icon, key = ":material/check:", f"{draft.key}-{draft.turn}-choose-{place}"
            if st.button(label, key=key, icon=icon, width="stretch"):
                draft.choose(reading.choices)


def _with_short_times(rows: pd.DataFrame) -> pd.DataFrame:
    """Times as text, midnights as dates alone."""
    shown = rows.rename(columns=str)
    for name in shown.select_dtypes("datetime"):
        times = shown[name]
        dates_only = bool((times == times.dt.normalize()).all())
        shown[name] = times.dt.strftime("%Y-%m-%d" if dates_only else "%Y-%m-%d %H:%M:%S")
    return shown


def explain(draft: Draft) -> None:
    """What is wrong with a file, its first lines, and what can be chosen to read it after all."""
    components.show_problem(draft.problem)
    if draft.choices != ReadingChoices() and st.button(
        "Read it as detected", icon=":material/undo:", key=f"{draft.key}-{draft.turn}-reset"
    ):
        draft.choose(ReadingChoices())
    if not draft.lines:
        return
    st.caption("The first lines of the file. Say below what they hold, or change the file.")
    st.code("\n".join(draft.lines), language=None)
    form(draft, None)


def alternatives(draft: Draft, reading: Reading) -> None:
    """Other readings that make sense for the file, each on one click."""
    if not reading.alternatives:
        return
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        for place, other in enumerate(reading.alternatives):
            key = f"{draft.key}-{draft.turn}-other-{place}"
            if st.button(other.sentence.rstrip("."), key=key, type="secondary"):
                draft.choose(merged(draft.choices, reading.choices, other.choices))


def form(draft: Draft, reading: Reading | None) -> None:
    """Every choice, opened at what was detected; a change reads the file again."""
    shown = reading.choices if reading else draft.choices
    titles = list(map(str, reading.head.columns)) if reading else titles_in(draft.lines)
    with st.expander(
        "Change how it is read",
        icon=":material/tune:",
        key=f"{draft.key}-form",
        expanded=reading is None,
    ):
        wanted = shown
        if reading is None or shown.columns is not None:
            wanted = _columns(draft, shown, [title.strip() for title in titles])
        wanted = _writing(draft, wanted)
        wanted = _meaning(draft, wanted)
    if wanted != shown:
        draft.choose(merged(draft.choices, shown, wanted))


def merged(own: ReadingChoices, shown: ReadingChoices, wanted: ReadingChoices) -> ReadingChoices:
    """A person's own choices with what differs between the shown reading and the wanted one.

    What is only detected stays so: another table of the same archive may need something else.
    """
    differing = {
        item.name: getattr(wanted, item.name)
        for item in fields(ReadingChoices)
        if getattr(wanted, item.name) != getattr(shown, item.name)
    }
    if columns := differing.get("columns"):
        before = shown.columns or {}
        other = {role: title for role, title in columns.items() if before.get(role, "") != title}
        differing["columns"] = {**(own.columns or {}), **other}
    return replace(own, **differing)


def titles_in(lines: Sequence[str]) -> list[str]:
    """The likely column titles of text that could not be read as a table."""
    if not lines:
        return []
    delimiter = max(DELIMITERS, key=lambda mark: lines[0].count(mark) if mark != " " else 0)
    return [cell.strip().strip('"') for cell in lines[0].split(delimiter)]


def _columns(draft: Draft, shown: ReadingChoices, titles: list[str]) -> ReadingChoices:
    """One select box for each role: the column that is used for it."""
    st.caption("Which column is what")
    before = dict(shown.columns or {})
    options = ["", *dict.fromkeys([*titles, *filter(None, before.values())])]
    chosen: dict[str, str] = {}
    for roles in (MAIN_ROLES, OTHER_ROLES):
        for role, column in zip(roles, st.columns(len(MAIN_ROLES)), strict=False):
            chosen[role] = column.selectbox(
                ROLE_WORDS.get(role, role).capitalize(),
                options,
                index=options.index(before.get(role, "")),
                format_func=lambda title: title or fmt.NONE,
                key=f"{draft.key}-{draft.turn}-{role}",
            )
    changed = {role: title for role, title in chosen.items() if before.get(role, "") != title}
    if not changed:
        return shown
    # A column that is taken for one role leaves the role that it had.
    moved = {
        role: ""
        for role, title in before.items()
        if role not in changed and title in changed.values()
    }
    return replace(shown, columns={**before, **moved, **changed})


def _writing(draft: Draft, shown: ReadingChoices) -> ReadingChoices:
    st.caption("How it is written")
    places = st.columns(5)
    line = places[4].number_input(
        "Line of the titles",
        0,
        10_000,
        shown.header_line,
        placeholder=DETECT,
        key=f"{draft.key}-{draft.turn}-header",
        help="0 when the columns have no titles.",
    )
    return replace(
        shown,
        encoding=_pick(draft, places[0], "Encoding", dict.fromkeys(ENCODINGS), shown.encoding),
        delimiter=_pick(draft, places[1], "Between columns", DELIMITERS, shown.delimiter),
        decimal=_pick(draft, places[2], "Decimal mark", DECIMALS, shown.decimal),
        date_order=_pick(draft, places[3], "Dates", ORDERS, shown.date_order),
        header_line=line,
    )


def _meaning(draft: Draft, shown: ReadingChoices) -> ReadingChoices:
    st.caption("What it means")
    places = st.columns(5)
    zones = dict.fromkeys(fmt.zones())
    return replace(
        shown,
        timezone=_pick(draft, places[0], "Time zone", zones, shown.timezone),
        epoch_unit=_pick(draft, places[1], "Unit of Unix times", UNITS, shown.epoch_unit),
        prices=_pick(draft, places[2], "Prices", PRICES, shown.prices),
        volume_factor=_factor(draft, places[3].number_input, "volume", shown.volume_factor),
        amount_factor=_factor(draft, places[4].number_input, "amount", shown.amount_factor),
    )


def _pick(
    draft: Draft, place: Any, label: str, words: Mapping[str, str | None], value: str | None
) -> Any:
    """A select box whose first entry leaves the choice to the reader."""
    options = ["", *dict.fromkeys([*words, *([value] if value else [])])]
    picked = place.selectbox(
        label,
        options,
        index=options.index(value or ""),
        format_func=lambda option: words.get(option) or option or DETECT,
        key=f"{draft.key}-{draft.turn}-{label}",
    )
    return picked or None


def _factor(
    draft: Draft, number_input: Callable[..., float], channel: str, value: float | None
) -> float | None:
    found = number_input(
        f"Multiply {channel} by",
        min_value=1e-9,
        value=value or 1.0,
        format="%g",
        key=f"{draft.key}-{draft.turn}-{channel}-factor",
        help="For lots of 100 shares or amounts in thousands.",
    )
    return None if found == 1 and value is None else float(found)

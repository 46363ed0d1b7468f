"""What is detected can be changed, and where two readings fit, both are shown and asked for."""

from __future__ import annotations

import pandas as pd
import pytest

from kronos_core import AmbiguityError, DataError, ReadingChoices, Series, inspect_bars, read_bars
from kronos_core.data.mapping import assign, dialect_of, normalised
from tests.core.dialect_samples import SAMPLES, check_against, content_of, frame_of


def table(*rows: str, header: str = "Date;Open;High;Low;Close;Volume") -> bytes:
    return "\n".join([header, *rows]).encode()


def read_one(content: bytes, **choices: object) -> Series:
    (series,) = read_bars(content, mapping=ReadingChoices(**choices))  # type: ignore[arg-type]
    return series


UNDECIDED = table("01/02/2024;1;2;1;2;5", "02/02/2024;1;2;1;2;6", "03/02/2024;1;2;1;2;7")


def test_an_undecided_date_is_asked_with_both_readings() -> None:
    with pytest.raises(AmbiguityError) as caught:
        read_bars(UNDECIDED, name="bars.csv")
    assert str(caught.value).startswith('bars.csv: Line 2, column Date: "01/02/2024" can mean')
    day, month = caught.value.readings
    assert day.sentence == "Day first: 01/02/2024 is 1 February 2024."
    assert month.sentence == "Month first: 01/02/2024 is 2 January 2024."
    assert list(day.rows["Date"]) == list(
        pd.to_datetime(["2024-02-01", "2024-02-02", "2024-02-03"])
    )
    assert list(month.rows["Date"]) == list(
        pd.to_datetime(["2024-01-02", "2024-02-02", "2024-03-02"])
    )
    for reading in (day, month):
        (series,) = read_bars(UNDECIDED, mapping=reading.choices)
        assert list(series.frame["timestamps"].dt.tz_localize(None)) == list(reading.rows["Date"])


@pytest.mark.parametrize("delimiter", [";", "\t", "|", ","])
def test_an_undecided_comma_is_asked_with_both_readings(delimiter: str) -> None:
    cells = [["2024-01-02", "1,234", "1,300", "1,200", "1,250", "10"]] * 2
    cells[1] = ["2024-01-03", *cells[0][1:]]
    quote = '"' if delimiter == "," else ""
    rows = [delimiter.join(f"{quote}{cell}{quote}" for cell in row) for row in cells]
    content = table(
        *rows, header=delimiter.join(["Date", "Open", "High", "Low", "Close", "Volume"])
    )
    with pytest.raises(AmbiguityError, match='column Open: "1,234" can be a number with') as caught:
        read_bars(content)
    thousands, decimals = caught.value.readings
    assert thousands.sentence == "The comma marks thousands: 1,234 is 1234."
    assert (thousands.rows["Open"][0], decimals.rows["Open"][0]) == (1234.0, 1.234)
    assert read_bars(content, mapping=thousands.choices)[0].frame["close"][1] == 1250
    assert read_bars(content, mapping=decimals.choices)[0].frame["close"][1] == 1.25


def test_two_questions_can_follow_each_other() -> None:
    content = table("01/02/2024;1,234;1,300;1,200;1,250;9", "02/02/2024;1,2;1,3;1,1;1,2;9")
    rows = content.replace(b"1,2;1,3;1,1;1,2", b"1,234;1,300;1,200;1,250")
    with pytest.raises(AmbiguityError) as first:
        read_bars(rows)
    with pytest.raises(AmbiguityError) as second:
        read_bars(rows, mapping=first.value.readings[1].choices)
    (series,) = read_bars(rows, mapping=second.value.readings[0].choices)
    assert series.frame["close"].tolist() == [1.25, 1.25]
    assert series.frame["timestamps"][0] == pd.Timestamp("2024-02-01", tz="UTC")


def test_one_row_settles_the_decimal_mark_for_all() -> None:
    rows = ["2024-01-02;1,234;1,300;1,200;1,250;1.000", "2024-01-03;1,5;2;1;1,5;1.000"]
    assert read_one(table(*rows)).frame.iloc[0, 1:3].tolist() == [1.234, 1.3]
    rows[1] = "2024-01-03;1,300.5;2,000;1,000;1,500;1,000,000"
    assert read_one(table(*rows[1:], rows[1].replace("03", "04"))).frame["open"][0] == 1300.5
    with pytest.raises(DataError, match=r'Line 3, column Open: "1,300.5" and .* \(line 2\) write'):
        read_one(table("2024-01-02;1,5;2;1;1,5;1", rows[1]))


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("1'234.5", 1234.5),
        ("1 234.5", 1234.5),
        ("1\u00a0234.5", 1234.5),
        ("1,234,567.25", 1234567.25),
        ("$1,234.50", 1234.5),
        ("1.5 €", 1.5),
        ("1.13M", 1130000.0),
        ("2.5k", 2500.0),
        ("3B", 3e9),
        ("0.5T", 5e11),
        ("1.2万", 12000.0),
        ("3亿", 3e8),
        ("1.5e3", 1500.0),
        ("+7.5", 7.5),
        (".5", 0.5),
    ],
)
def test_ways_to_write_a_number(written: str, number: float) -> None:
    series = read_one(table(f"2024-01-02;1;2;1;2;{written}", "2024-01-03;1.5;2;1;2;7.25"))
    assert series.frame["volume"][0] == number


@pytest.mark.parametrize("wrong", ["1,23,4.5", "12 34", "1..5", "1.5MM", "K", "5%", "0x10", "1_0"])
def test_what_is_no_number_is_named(wrong: str) -> None:
    with pytest.raises(DataError, match="Line 3, column Volume"):
        read_one(table("2024-01-02;1.5;2;1;2;6.5", f"2024-01-03;1.5;2;1;2;{wrong}"))


def test_signs_for_none_are_zero_volume_but_no_price() -> None:
    series = read_one(
        table("2024-01-02;1;2;1;2;-", "2024-01-03;1;2;1;2;N/A", "2024-01-04;1;2;1;2;5")
    )
    assert series.frame["volume"].tolist() == [0, 0, 5]
    assert (
        "In 2 rows the volume is a dash or N/A and is taken as 0 (first line 2)." in series.findings
    )
    with pytest.raises(DataError, match="Line 2, column Close: the value is missing"):
        read_one(table("2024-01-02;1;2;1;-;5", "2024-01-03;1;2;1;2;5"))


def test_rows_without_prices_are_left_out_with_a_finding() -> None:
    series = read_one(
        table(
            "2024-01-02;1;2;1;2;5",
            "2024-01-03;null;null;null;null;null",
            "2024-01-04;1;2;1;2;5",
            ";;;;;",
        )
    )
    assert len(series.frame) == 2
    assert "1 row without prices was left out (first line 3)." in series.findings


def test_adjusted_prices_are_a_choice() -> None:
    content = content_of("yahoo.csv")
    (reading,) = inspect_bars(content)
    assert reading.choices.prices == "raw"
    (offer,) = reading.alternatives
    assert "adjusted close" in offer.sentence
    (adjusted,) = read_bars(content, mapping=offer.choices)
    raw = reading.series[0].frame
    assert adjusted.frame["close"].tolist() == [92.8199995, 92.125, 90.955002, 90.5899965]
    factor = adjusted.frame["close"] / raw["close"]
    assert (adjusted.frame["high"] == raw["high"] * factor).all()
    assert (adjusted.frame["volume"] == raw["volume"]).all()
    assert (
        "Prices are adjusted for splits and dividends by the column Adj Close." in adjusted.findings
    )
    (back,) = inspect_bars(content, mapping=offer.choices)[0].alternatives
    check_against(SAMPLES["yahoo.csv"], read_bars(content, mapping=back.choices))


def test_lots_are_said_and_scaled_on_request() -> None:
    content = content_of("tushare.csv")
    (reading,) = inspect_bars(content)
    assert any("lots of 100 and amount in thousands" in note for note in reading.findings)
    (scaled,) = read_bars(content, mapping=reading.alternatives[0].choices)
    assert scaled.frame["volume"].tolist() == [v * 100 for v in reading.series[0].frame["volume"]]
    assert scaled.frame["amount"][0] == 1075742.252 * 1000
    assert "The volume was multiplied by 100." in scaled.findings


@pytest.mark.parametrize("name", ["akshare_daily.csv", "akshare_minutes.csv"])
def test_lots_without_thousands(name: str) -> None:
    content = content_of(name)
    (reading,) = inspect_bars(content)
    assert any("mainland shares in lots of 100" in note for note in reading.findings)
    offer = next(other for other in reading.alternatives if "lots" in other.sentence)
    assert offer.sentence == "Scale volume by 100 (lots)."
    (kept,), (scaled,) = reading.series, read_bars(content, mapping=offer.choices)
    # As in the file, an average price of a share comes out.
    price = scaled.frame["amount"] / scaled.frame["volume"]
    assert price.between(scaled.frame["low"] * 0.99, scaled.frame["high"] * 1.01).all()
    assert (scaled.frame["amount"] == kept.frame["amount"]).all()
    assert (scaled.frame["volume"] == kept.frame["volume"] * 100).all()


def test_a_time_zone_is_a_choice() -> None:
    content = content_of("akshare_minutes.csv")
    (reading,) = inspect_bars(content)
    zoned = next(other for other in reading.alternatives if "Shanghai" in other.sentence)
    (local,) = read_bars(content, mapping=zoned.choices)
    assert local.timezone == "Asia/Shanghai"
    assert local.frame["timestamps"][0] == pd.Timestamp("2024-01-02 01:31", tz="UTC")
    assert "Times carry no time zone and are taken as Asia/Shanghai." in local.findings
    # Times that carry an offset keep their instants.
    (moved,) = read_bars(
        content_of("tradingview_iso.csv"), mapping=ReadingChoices(timezone="Europe/Berlin")
    )
    assert moved.timezone == "Europe/Berlin"
    pd.testing.assert_frame_equal(
        moved.frame, frame_of(SAMPLES["tradingview_iso.csv"].series[None]), check_exact=True
    )


@pytest.mark.parametrize("newest_first", [False, True])
def test_the_hour_that_comes_twice_is_told_by_the_order_of_rows(newest_first: bool) -> None:
    rows = [
        f"2024-11-03 {time};1;2;1;2;{at}"
        for at, time in enumerate(["00:30", "01:00", "01:30", "01:00", "01:30", "02:00"])
    ]
    content = table(*(rows[::-1] if newest_first else rows))
    series = read_one(content, timezone="America/New_York")
    assert series.frame["volume"].tolist() == [0, 1, 2, 3, 4, 5]
    assert (series.frame["timestamps"].diff()[1:] == pd.Timedelta(minutes=30)).all()
    with pytest.raises(DataError, match="Lines 3 and 5 both hold the bar of 2024-11-03 01:00"):
        read_one(table(*rows))


def test_an_hour_that_does_not_exist_is_named() -> None:
    content = table("2024-03-10 01:30;1;2;1;2;5", "2024-03-10 02:30;1;2;1;2;5")
    with pytest.raises(
        DataError, match="Line 3: 2024-03-10 02:30:00 does not exist in America/New"
    ):
        read_one(content, timezone="America/New_York")


def test_columns_can_be_chosen() -> None:
    content = content_of("yahoo.csv")
    series = read_one(content, columns={"close": "Adj Close", "volume": ""})
    assert series.frame["close"][0] == 92.8199995
    assert (series.frame["volume"] == 0).all()
    bare = content_of("metatrader4.csv")
    swapped = read_one(bare, columns={"open": "Column 6", "close": "column 3"})
    assert swapped.frame.iloc[0, 1:5].tolist() == [1.10429, 1.10437, 1.10419, 1.10427]
    with pytest.raises(DataError, match="no column 'Nothing'; found Date, Open"):
        read_one(content, columns={"close": "Nothing"})


def test_delimiter_header_encoding_and_unit_can_be_chosen() -> None:
    rows = ["1704186000,1,2,1,2,5", "1704186060,1,2,1,2,5"]
    text = "\n".join(["Größe in Stück", "time,open,high,low,close,volume", *rows])
    chosen = read_one(
        text.encode("cp1252"), encoding="cp1252", delimiter=",", header_line=2, epoch_unit="ms"
    )
    assert chosen.frame["timestamps"][0] == pd.Timestamp(1704186000, unit="ms", tz="UTC")
    assert 'Line 1 stands before the table and was skipped: "Größe in Stück".' in chosen.findings
    bare = read_one("\n".join(["t,a,b,c,d,e", *rows]).encode(), header_line=0)
    assert bare.frame["timestamps"][0] == pd.Timestamp("2024-01-02 09:00", tz="UTC")
    with pytest.raises(DataError, match="Line 1 holds no known column titles"):
        read_one(text.encode("cp1252"), header_line=1)
    with pytest.raises(DataError, match="is not UTF-8 text"):
        read_one(text.encode("cp1252"), encoding="utf-8")


@pytest.mark.parametrize(
    "choices",
    [
        {"decimal": ";"},
        {"date_order": "ymd"},
        {"epoch_unit": "m"},
        {"prices": "both"},
        {"delimiter": ";;"},
        {"delimiter": "\n"},
        {"header_line": -1},
        {"volume_factor": 0},
        {"amount_factor": float("inf")},
        {"timezone": "Mars/Olympus"},
        {"timezone": "../etc/passwd"},
        {"encoding": "klingon"},
        {"encoding": "rot13"},
        {"columns": {"price": "Close"}},
    ],
)
def test_choices_that_cannot_be_meant_are_refused(choices: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(choices))):
        ReadingChoices(**choices)  # type: ignore[arg-type]


def test_unknown_choices_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown choice colour; known: columns"):
        ReadingChoices.from_dict({"colour": "red"})


def test_a_preview_shows_the_mapping_and_the_first_rows() -> None:
    (reading,) = inspect_bars(content_of("investing_portuguese.csv"))
    assert reading.dialect == "Investing.com (Portuguese)"
    assert reading.columns == {
        "Data": "timestamps",
        "Último": "close",
        "Abertura": "open",
        "Máxima": "high",
        "Mínima": "low",
        "Vol.": "volume",
        "Var%": "",
    }
    assert reading.head.iloc[0].tolist() == [
        "05.01.2024",
        "37,53",
        "37,38",
        "37,90",
        "37,15",
        "33,41M",
        "0,70%",
    ]
    assert (reading.choices.decimal, reading.choices.delimiter) == (",", ",")
    assert (reading.choices.encoding, reading.choices.header_line) == ("utf-8", 1)


@pytest.mark.parametrize("encoding", ["gbk", "cp1252", "latin-1", "utf-16-le", "cp1250"])
def test_encodings_are_told_by_the_known_titles(encoding: str) -> None:
    name = {"gbk": "akshare_minutes.csv", "cp1250": "stooq_polish.csv"}.get(
        encoding, "investing_portuguese.csv"
    )
    text = content_of(name).decode()
    check_against(
        SAMPLES[name], read_bars(text.replace("Zamkniecie", "Zamknięcie").encode(encoding))
    )


def test_investing_dates_are_asked_when_they_could_be_monthly() -> None:
    rows = ['"04/09/2020","2","1","3","1","5","1%"', '"04/08/2020","2","1","3","1","5","1%"']
    header = '"Date","Price","Open","High","Low","Vol.","Change %"'
    series = read_one(table(*rows, header=header))
    assert series.frame["timestamps"][0] == pd.Timestamp("2020-04-08", tz="UTC")
    (reading,) = inspect_bars(table(*rows, header=header))
    assert [other.sentence for other in reading.alternatives] == ["Read the dates day first."]
    monthly = [row.replace("04/0", "01/0") for row in rows]
    with pytest.raises(AmbiguityError):
        read_one(table(*monthly, header=header))


def test_two_digit_years() -> None:
    series = read_one(table("31/12/99;1;2;1;2;5", "03/01/00;1;2;1;2;5"))
    assert [str(time.date()) for time in series.frame["timestamps"]] == ["1999-12-31", "2000-01-03"]
    with pytest.raises(AmbiguityError) as caught:
        read_one(table("24-01-02;1;2;1;2;5", "24-01-03;1;2;1;2;5"))
    assert [one.sentence for one in caught.value.readings][-1] == (
        "Year first: 24-01-02 is 2 January 2024."
    )


def test_unix_times_before_1973_are_read_when_they_run_on() -> None:
    rows = [f"{at * 86400 * 100};1;2;1;2;5" for at in range(-50, 60)]
    assert read_one(table(*rows)).frame["timestamps"][0].year == 1956
    with pytest.raises(DataError, match='Line 2, column Date: "12" is not a plausible Unix time'):
        read_one(table("12;1;2;1;2;5", "1704186000;1;2;1;2;5", "1704189600;1;2;1;2;5"))


def test_a_ticker_without_prices_is_left_out_with_a_finding() -> None:
    lines = content_of("yfinance_wide.csv").decode().splitlines()
    rows = [
        ",".join(cell if at % 2 == 0 else "" for at, cell in enumerate(line.split(",")))
        for line in lines[3:]
    ]
    rows = [
        line.split(",")[0] + row[row.index(",") :]
        for line, row in zip(lines[3:], rows, strict=True)
    ]
    (series,) = read_bars("\n".join([*lines[:3], *rows]).encode())
    assert series.symbol == "BTC-USD"
    assert "There is no price of AAPL; left out." in series.findings


def test_titles_are_compared_without_accents_signs_and_case() -> None:
    assert normalised(" Último ") == "ultimo"
    assert normalised("<TICKVOL>") == "tickvol"
    assert normalised("4. close") == "close"
    assert normalised("Quote  asset_volume") == "quote_asset_volume"
    assert dialect_of(["Unix", "Date", "Symbol", "Open"]).name == "CryptoDataDownload"


@pytest.mark.parametrize(
    ("titles", "volume", "amount"),
    [
        ("Date,Open,High,Low,Close,Volume BTC,Volume USDT", 5, 6),
        ("Date,Open,High,Low,Close,Volume USD,Volume BTC", 6, 5),
        ("Date,Open,High,Low,Close,Volume ETH,Volume BTC", 5, 6),
        ("Date,Open,High,Low,Close,Volume,Volume MA", 5, None),
        ("Datum,Erster,Hoch,Tief,Schlusskurs,Stuecke,Volumen", 5, 6),
        ("Datum,Eröffnung,Hoch,Tief,Schluss,Volumen", 5, None),
        ("Date,Open,High,Low,Close,Turnover,Volume", 6, 5),
    ],
)
def test_which_column_is_volume_and_which_amount(
    titles: str, volume: int, amount: int | None
) -> None:
    roles = assign(titles.split(","), ReadingChoices())
    assert (roles.get("volume"), roles.get("amount")) == (volume, amount)

"""Sheets for annotators: blind, harmless, and un-blinded without a slip."""

import csv
import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from univerb.errors import OptionError
from univerb.lab.judging import human_sheet
from univerb.lab.judging.human_sheet import (
    CRITERIA,
    SheetKey,
    human_preference,
    read_sheet,
    write_sheet,
)
from univerb.lab.judging.system_texts import ContinuationPair
from univerb.lab.metrics.agreement import Rates, Tally

PAIRS = [ContinuationPair(f"prefix {n}", f" good {n}", f" poor {n}") for n in range(9)]


@pytest.fixture
def made(tmp_path) -> tuple[Path, SheetKey]:
    key = write_sheet(PAIRS, tmp_path / "sheet.csv", tmp_path / "key.json", "univerb", "gpt2")
    return tmp_path / "sheet.csv", key


def rows(path: Path) -> list[dict[str, str]]:
    text = path.read_bytes().decode("utf-8-sig")
    return list(csv.DictReader(io.StringIO(text, newline="")))


def fill(path: Path, to: Path, answers, delimiter: str = ",", encoding: str = "utf-8") -> Path:
    """Fill a sheet: `answers` returns the cell of a row and a criterion."""
    records = rows(path)
    with to.open("w", encoding=encoding, newline="") as file:
        writer = csv.DictWriter(file, list(records[0]), delimiter=delimiter)
        writer.writeheader()
        for number, record in enumerate(records):
            own = {name: answers(number, record, name) for name in CRITERIA}
            writer.writerow(record | own)
    return to


def likes_good(_: int, record: dict[str, str], __: str) -> str:
    return "1" if "good" in record["continuation 1"] else "2"


# The sheet


def test_a_sheet_shows_the_texts_and_hides_the_systems(made, tmp_path):
    path, key = made
    records = rows(path)
    assert [own["prefix"] for own in records] == [pair.prompt for pair in PAIRS]
    for record, pair in zip(records, PAIRS, strict=True):
        shown = [record["continuation 1"], record["continuation 2"]]
        assert sorted(shown) == [pair.ours, pair.theirs]
        assert shown[key.sides[record["item"]] - 1] == pair.ours
        assert all(record[name] == "" for name in CRITERIA)
    assert "univerb" not in path.read_text() and "gpt2" not in path.read_text()
    assert SheetKey.read(tmp_path / "key.json") == key
    assert path.read_bytes().startswith(b"\xef\xbb\xbf")


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(0, 5))
def test_sides_are_balanced_and_follow_the_seed(tmp_path_factory, size, seed):
    folder = tmp_path_factory.mktemp("sheet")
    pairs = [ContinuationPair(str(n), "a", "b") for n in range(size)]
    keys = [
        write_sheet(pairs, folder / f"{n}.csv", folder / f"{n}.json", seed=seed) for n in range(2)
    ]
    assert keys[0] == keys[1]
    assert (folder / "0.csv").read_bytes() == (folder / "1.csv").read_bytes()
    sides = list(keys[0].sides.values())
    assert abs(sides.count(1) - sides.count(2)) <= 1


def test_sides_depend_on_the_seed(tmp_path):
    every = {
        tuple(write_sheet(PAIRS, tmp_path / f"{n}", tmp_path / f"k{n}", seed=n).sides.values())
        for n in range(5)
    }
    assert len(every) > 1


@pytest.mark.parametrize("start", ["=", "+", "-", "@", " =", "\t", "\r", "\n=", "＝", "\u00a0="])
def test_no_text_becomes_a_formula(tmp_path, start):
    text = f'{start}HYPERLINK("http://x")'
    write_sheet([ContinuationPair(text, text, "plain = text")], tmp_path / "s", tmp_path / "k")
    [record] = rows(tmp_path / "s")
    shown = {record[name] for name in ("prefix", "continuation 1", "continuation 2")}
    assert shown == {f"'{text}", "plain = text"}


@settings(max_examples=30)
@given(st.tuples(*[st.text(st.characters(exclude_categories=["Cs"]), max_size=9)] * 3))
def test_any_text_survives_in_a_sheet(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("sheet")
    key = write_sheet([ContinuationPair(*texts)], folder / "s", folder / "k")
    [record] = rows(folder / "s")
    side = key.sides[record["item"]]
    shown = (record["prefix"], record[f"continuation {side}"], record[f"continuation {3 - side}"])
    for cell, text in zip(shown, texts, strict=True):
        assert cell in (text, f"'{text}")
        assert not cell.strip().startswith(("=", "+", "-", "@"))


def test_nothing_is_overwritten(made, tmp_path):
    path, _ = made
    before = path.read_bytes()
    with pytest.raises(OptionError, match=r"sheet\.csv' exists"):
        write_sheet(PAIRS, path, tmp_path / "other.json")
    assert not (tmp_path / "other.json").exists()
    with pytest.raises(OptionError, match=r"key\.json' exists"):
        write_sheet(PAIRS, tmp_path / "other.csv", tmp_path / "key.json")
    with pytest.raises(OptionError, match="cannot be written"):
        write_sheet(PAIRS, tmp_path / "same", tmp_path / "same")
    with pytest.raises(OptionError, match="at least one"):
        write_sheet([], tmp_path / "none.csv", tmp_path / "none.json")
    assert path.read_bytes() == before


def test_where_there_is_a_key_there_is_a_whole_sheet(tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(human_sheet, "_create", lambda path, *_: written.append(path.name))
    write_sheet(PAIRS, tmp_path / "sheet.csv", tmp_path / "key.json")
    assert written == ["sheet.csv", "key.json"]


# Filled sheets


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_answers_are_unblinded(made, tmp_path, delimiter, encoding):
    path, key = made
    filled = fill(path, tmp_path / "a.csv", likes_good, delimiter, encoding)
    found = human_preference([read_sheet(filled, key)])
    assert [own.criterion for own in found] == list(CRITERIA)
    for own in found:
        assert own.rates == own.majority == Tally(9, 0, 0)
        assert own.agreement is None


@settings(max_examples=30)
@given(st.data())
def test_exchanging_the_systems_exchanges_better_and_worse(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("sheet")
    key = write_sheet(PAIRS, folder / "s", folder / "k")
    answers = st.sampled_from(["1", "2", "tie", " TIE ", "1 "])
    cells = data.draw(st.lists(answers, min_size=9, max_size=9))
    filled = fill(folder / "s", folder / "a", lambda n, *_: cells[n])
    exchanged = key.model_copy(update={"sides": {i: 3 - s for i, s in key.sides.items()}})
    for own, other in zip(
        human_preference([read_sheet(filled, key)]),
        human_preference([read_sheet(filled, exchanged)]),
        strict=True,
    ):
        assert own.rates == other.rates[::-1] and own.rates.total == 9
        assert own.rates.no_preference == sum("tie" in cell.lower() for cell in cells)


def test_several_annotators_by_hand(tmp_path):
    key = write_sheet(PAIRS[:4], tmp_path / "s", tmp_path / "k")
    # What each of three says about ours, item by item.
    said = ["+++-", "++0-", "+-+0"]

    def answers(own: str):
        def cell(number: int, record: dict[str, str], name: str) -> str:
            if name == "grammar":
                return ""
            side = key.sides[record["item"]]
            return {"+": str(side), "0": "tie", "-": str(3 - side)}[own[number]]

        return cell

    sheets = [
        read_sheet(fill(tmp_path / "s", tmp_path / f"{n}.csv", answers(own)), key)
        for n, own in enumerate(said)
    ]
    found = human_preference(sheets)
    assert [own.criterion for own in found] == list(CRITERIA[:-1])
    overall = found[0]
    assert overall.annotators == 3
    assert overall.rates == Tally(7, 2, 3)
    assert overall.rates.rates == Rates(7 / 12, 2 / 12, 3 / 12)
    assert overall.majority == Tally(3, 0, 1)
    # Agreeing pairs of annotators: 3, 1, 1, 1 of 3 each.
    assert overall.agreement is not None and overall.agreement.raw == pytest.approx(0.5)
    assert overall.agreement.method == "Fleiss"
    assert json.loads(json.dumps(overall.to_dict()))["agreement"]["raw"] == pytest.approx(0.5)
    two = human_preference(sheets[:2])[0]
    assert two.agreement is not None and two.agreement.method == "Cohen"
    # Two that differ have no majority.
    assert two.majority == Tally(2, 1, 1)


def test_rows_may_be_sorted_and_columns_added(made, tmp_path):
    path, key = made
    filled = fill(path, tmp_path / "a.csv", likes_good)
    records = rows(filled)
    with filled.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["comment", *reversed(list(records[0]))])
        writer.writeheader()
        writer.writerows(record | {"comment": "hm"} for record in reversed(records))
        file.write(",,,,,,,,,\r\n")
    assert human_preference([read_sheet(filled, key)])[0].rates == Tally(9, 0, 0)


@pytest.mark.parametrize("cell", ["3", "", "both", "1.5"])
def test_a_wrong_answer_is_named_by_item_and_column(made, tmp_path, cell):
    path, key = made
    filled = fill(
        path, tmp_path / "a.csv", lambda n, _, name: cell if (n, name) == (4, "fluency") else "1"
    )
    item = list(key.sides)[4]
    with pytest.raises(OptionError, match=f"item '{item}', column 'fluency': '{cell}'"):
        read_sheet(filled, key)


def test_rows_that_do_not_belong_are_named(made, tmp_path):
    path, key = made
    filled = fill(path, tmp_path / "a.csv", likes_good)
    first, *others = filled.read_text().splitlines(keepends=True)

    def written(*some: str) -> Path:
        (tmp_path / "b.csv").write_text("".join([first, *some]))
        return tmp_path / "b.csv"

    items = list(key.sides)
    with pytest.raises(OptionError, match=f"8 rows for 9 items; '{items[3]}'"):
        read_sheet(written(*others[:3], *others[4:]), key)
    with pytest.raises(OptionError, match=f"10 rows for 9 items; '{items[0]}'"):
        read_sheet(written(*others, others[0]), key)
    other = write_sheet(PAIRS[::-1], tmp_path / "o.csv", tmp_path / "o.json")
    with pytest.raises(OptionError, match="9 rows for 9 items; .* not in the key"):
        read_sheet(filled, other)


def test_what_is_no_filled_sheet_is_refused(made, tmp_path):
    path, key = made
    with pytest.raises(OptionError, match="not filled in"):
        read_sheet(path, key)
    (tmp_path / "b").write_text("a,b\n1,2\n")
    with pytest.raises(OptionError, match="no column 'item'"):
        read_sheet(tmp_path / "b", key)
    (tmp_path / "b").write_text("item,overall,fluency\n")
    with pytest.raises(OptionError, match="no column 'coherence'"):
        read_sheet(tmp_path / "b", key)
    (tmp_path / "b").write_bytes("item,ä".encode("latin-1"))
    with pytest.raises(OptionError, match="in UTF-8"):
        read_sheet(tmp_path / "b", key)
    with pytest.raises(OptionError, match="cannot be read"):
        read_sheet(tmp_path / "nowhere", key)
    with pytest.raises(OptionError, match="no filled sheet"):
        human_preference([])


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        '{"ours": "a", "theirs": "b", "seed": 0, "sides": {"x": 3}}',
        '{"ours": "a", "theirs": "b", "seed": 0, "sides": {}}',
        '{"schema_version": 2, "ours": "a", "theirs": "b", "seed": 0, "sides": {"x": 1}}',
    ],
)
def test_what_is_no_key_is_refused(tmp_path, text):
    (tmp_path / "k").write_text(text)
    with pytest.raises(OptionError, match="is not the key of a sheet"):
        SheetKey.read(tmp_path / "k")

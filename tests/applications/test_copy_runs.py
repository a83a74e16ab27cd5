"""Copy runs against a search that knows nothing of words as they do: plain strings and edges."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from univerb.applications.copy_runs import CopiedPassages, CopyPlace, CopyRun, split_words
from univerb.documents.chunks import Chunk


def copied(text: str, *passages: str) -> list[str]:
    """Return the stretches of a text that are copied from passages."""
    chunks = [Chunk(f"d{n}", 0, passage) for n, passage in enumerate(passages)]
    return [text[run.start : run.end] for run in CopiedPassages(chunks).runs(text)]


# -- A reference that was written apart -----------------------------------------------------------


def is_edge(text: str, at: int) -> bool:
    """Whether a stretch of a text may begin or end there: not inside a word or a number."""
    before, after = text[:at], text[at:]
    if not before or not after or before[-1].isspace() or after[0].isspace():
        return True
    if before[-1].isalnum() and (after[0].isalnum() or after[0] in ".,-" and after[1:2].isalnum()):
        return False
    if before[-1] == "-" and after[0].isdigit():
        return False
    return not (after[0].isalnum() and before[-1] in ".,-" and before[-2:-1].isalnum())


def cells_of(text: str) -> list[tuple[int, int]]:
    """Where the words and marks of a text are: what stands between neighbouring edges."""
    edges = [at for at in range(len(text) + 1) if is_edge(text, at)]
    return [(a, b) for a, b in itertools.pairwise(edges) if text[a:b].strip()]


def places_of(passage: str) -> dict[str, set[tuple[int, int]]]:
    """Every stretch of a passage on one line, and where it stands."""
    places: dict[str, set[tuple[int, int]]] = {}
    cells = cells_of(passage)
    for i, j in itertools.combinations_with_replacement(range(len(cells)), 2):
        start, end = cells[i][0], cells[j][1]
        places.setdefault(" ".join(passage[start:end].split()), set()).add((start, end))
    return places


def stretches(text: str, known: set[str]) -> list[tuple[int, int]]:
    """The longest copied stretches, the longer ones whole, from the first word to the last."""
    cells = cells_of(text)

    def between(i: int, j: int) -> str:
        return text[cells[i][0] : cells[j - 1][1]]

    ends = [
        max((j for j in range(i + 1, len(cells) + 1) if " ".join(between(i, j).split()) in known),
            default=i)
        for i in range(len(cells))
    ]  # fmt: skip
    taken: set[int] = set()
    found = []
    for i in sorted(range(len(cells)), key=lambda i: i - ends[i]):
        free = list(itertools.takewhile(lambda c: c not in taken, range(i, ends[i])))
        taken.update(free)
        spoken = [c for c in free if any(map(str.isalnum, between(c, c + 1)))]
        if spoken:
            found.append((cells[spoken[0]][0], cells[spoken[-1]][1]))
    return sorted(found)


def says_something(stretch: str) -> bool:
    """Whether it has two words or a number of two digits: no word below is glue or a name."""
    words = [stretch[a:b] for a, b in cells_of(stretch)]
    spoken = [word for word in words if any(map(str.isalnum, word))]
    return len(spoken) > 1 or any("00" in word for word in spoken)


PARTS = ["tenant", "rent", "co-operate", "co", "operate", "1,500", "500", "5-yearly", "yearly", "5"]
texts = st.lists(
    st.tuples(
        st.sampled_from([*PARTS, ".", ",", "(", "-"]), st.sampled_from([" ", " ", "", "\n", "  "])
    ),
    max_size=12,
).map(lambda pairs: "".join(word + space for word, space in pairs))


@settings(max_examples=300)
@given(texts, st.lists(texts, min_size=1, max_size=3))
def test_runs_are_those_that_a_search_by_strings_finds(text, passages):
    chunks = [Chunk(f"d{n}", 7 * n, passage) for n, passage in enumerate(passages)]
    indexes = [places_of(passage) for passage in passages]
    found = stretches(text, {stretch for index in indexes for stretch in index})
    expected = [
        CopyRun(
            start,
            end,
            tuple(
                CopyPlace(n, 7 * n + a, 7 * n + b)
                for n, index in enumerate(indexes)
                for a, b in sorted(index.get(" ".join(text[start:end].split()), ()))
            ),
        )
        for start, end in found
        if says_something(text[start:end])
    ]
    assert CopiedPassages(chunks).runs(text) == expected


@settings(max_examples=200)
@given(st.text(max_size=40), st.text(max_size=40), st.integers(0, 40), st.integers(0, 40))
def test_whatever_the_texts_are_a_run_is_what_its_places_say(lead, rest, start, end):
    passage = lead + " " + rest
    text = rest[min(start, end) : max(start, end)] + " " + lead
    runs = CopiedPassages([Chunk("d", 3, passage), Chunk("e", 0, rest)]).runs(text)
    for run in runs:
        assert 0 <= run.start < run.end <= len(text)
        for place in run.places:
            own, offset = ((passage, 3), (rest, 0))[place.passage]
            source = own[place.start - offset : place.end - offset]
            assert source.split() == text[run.start : run.end].split()
    edges = [edge for run in runs for edge in (run.start, run.end)]
    assert edges == sorted(edges), "runs overlap"


@given(st.lists(st.text(max_size=10), max_size=5))
def test_words_tile_a_text(parts):
    text = " ".join(parts)
    words = split_words(text)
    assert "".join(word.text for word in words) == "".join(text.split())
    for before, word in itertools.pairwise(words):
        assert word.is_spaced == (before.end < word.start)
        assert text[word.start : word.end] == word.text


# -- Cases ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "passage"),
    [
        ("the rents rise", "the rents-free rise"),
        ("a rent free home", "a rent-free home"),
        ("it costs 1,500 euros", "it costs 31,500 euros"),
        ("it costs 1,500 euros", "it costs 1,500.75 euros"),
        ("clause 12(3) applies", "clause 12(3)(a) applies"),
        ("born in 1990 here", "born in 1990–95 here"),
        ("open at 12 daily", "open at 12:30 daily"),
        ("a lease of 15 years", "a lease of 15-year terms"),
        ("a boy of 19 here", "a 19-year-old boy"),
        ("some mg 250 of it", "250mg of it"),
        ("for 250 of it", "for 250mg of it"),
        ("minus 45 degrees", "minus -45 degrees"),
        ("see the cafe there", "see the cafe\u0301 there"),
        ("das Straßen Café", "das Straßen\u00adbahn Café"),
        ("tenants pay", "subtenants pay"),
        ("it costs 500 euros", "it costs 1 500 euros"),
        ("it costs 500 euros", "it costs 1\u202f500 euros"),
        ("it costs 1 500 euros", "it costs 1\xa0500.75 euros"),
        ("it costs 2 500 euros", "it costs 12 500 000 euros"),
        ("has 12 stars", "has 10^12 stars"),
        ("has 12 stars", "has 3 × 10^12 stars"),
        ("has 10 stars", "has 10^-12 stars"),
        ("3) applies here", "§ 12 (3) applies here"),
        ("§ 12 applies here", "§ 12 (3) applies here"),
        ("12 (3) applies here", "§\u202f12 (3)(a) applies here"),
        ("article 12", "article 12 (a)"),
        ("y to the 12th", "y^12th"),
    ],
)
def test_no_run_ends_inside_a_word_or_a_number(text, passage):
    whole = {word.text for word in split_words(passage)}
    for stretch in copied(text, passage):
        assert {word.text for word in split_words(stretch)} <= whole
        at = passage.find(stretch)
        around = passage[at - 1 : at] + passage[at + len(stretch) :][:1]
        assert at < 0 or not any(map(str.isalnum, around))
    # What differs is the word that looks alike; it is never part of a run.
    assert text not in copied(text, passage)


@pytest.mark.parametrize(
    "text",
    [
        "of the",
        "it is not what they were",
        "tenant",
        "The",
        "Tenant",
        "co-operate",
        "of tenant",
        "a 5 of",
        ". , (",
        "",
        " \n ",
    ],
)
def test_glue_single_common_words_and_marks_are_no_runs(text):
    assert copied(text, f"So {text} then. {text} And {text}") == []


@pytest.mark.parametrize("text", ["in 2013", "£1,500", "to Paris", "quiet enjoyment", "50%"])
def test_numbers_names_and_two_content_words_are_runs(text):
    assert [stretch in text for stretch in copied(f"Or {text}.", f"Was {text} it?")] == [True]


@pytest.mark.parametrize(
    "text",
    [
        "it costs 1 500 euros",
        "it costs 1\u202f500.75 euros",
        "§ 12 (3) applies here",
        "has 3 × 10^12 stars",
        "of 2013 500 ships sank",
        "on 5 May 2013 (see page",
    ],
)
def test_whole_numbers_are_copied(text):
    assert copied(f"Or {text}.", f"Was {text} it?") == [text]


def test_characters_of_scripts_without_spaces_are_words():
    lease = "房东每年检查屋顶。租户应在2013年支付租金。"
    assert copied("租户应在2013年支付租金。", lease) == ["租户应在2013年支付租金"]
    assert copied("我们说房东每年检查它", lease) == ["房东每年检查"]
    assert copied("支付租金给他", lease) == ["支付租金"]
    # About one common word.
    assert copied("每年1 500元", "租金每年1 500元。") == ["每年1 500元"]
    assert "500" not in "".join(copied("又 500元整付清", "租金每年1 500元整付清。"))
    assert copied("他说屋顶很好", lease) == []
    assert copied("ผู้เช่าต้องจ่ายค่าเช่า", "ผู้เช่าต้องจ่ายค่าเช่า") == ["ผู้เช่าต้องจ่ายค่าเช่า"]
    assert copied("借主は家賃を払う。", "だから借主は家賃を払う。") == ["借主は家賃を払う"]


def test_a_capital_at_the_beginning_of_a_sentence_makes_no_name():
    assert copied("Ships rest. Ships sail", "Ships were. Ships are") == []
    assert copied("See Paris", "In Paris") == ["Paris"]


def test_white_space_counts_only_by_whether_there_is_any():
    assert copied("quiet  enjoyment\nhere", "so quiet\nenjoyment here") == [
        "quiet  enjoyment\nhere"
    ]
    assert copied("quiet, enjoyment", "quiet , enjoyment") == []
    assert copied("[sic] quiet", "[sic]quiet") == []


def test_case_and_every_other_character_matter():
    for other in (
        "Quiet enjoyment",
        "quiet enjoyments",
        "quiet, enjoyment",
        "qui\u0435t enjoyment",
    ):
        assert copied("quiet enjoyment", other) == []


def test_the_longest_run_is_whole_and_the_other_is_what_is_left():
    first, second = "red tenant pays rent", "pays rent each blue month"
    text = "red tenant pays rent each blue month"
    assert copied(text, first, second) == ["red tenant", "pays rent each blue month"]


def test_every_place_is_known():
    chunks = [Chunk("a", 10, "big ships, big ships"), Chunk("b", 0, "no big\nships")]
    [run] = CopiedPassages(chunks).runs("Some big ships sail.")
    assert run.places == (CopyPlace(0, 10, 19), CopyPlace(0, 21, 30), CopyPlace(1, 3, 12))
    assert CopiedPassages([]).runs("Some big ships sail.") == []

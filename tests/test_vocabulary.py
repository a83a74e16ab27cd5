"""V' = V + P: ids that never move, whatever is added, removed, revived, used or expired."""

import random
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import univerb.vocabulary
from univerb.errors import VocabularyError
from univerb.phrase import Phrase, Span
from univerb.vocabulary import DynamicVocabulary

STATIC = 50
KEYS = st.lists(st.integers(0, 1), min_size=1, max_size=2).map(tuple)
SPANS = st.builds(Span, st.sampled_from(["a.txt", "b.txt"]), st.integers(0, 2), st.integers(3, 5))
PHRASES = st.builds(
    Phrase,
    KEYS,
    st.just(" text"),
    st.lists(SPANS, max_size=2, unique=True).map(tuple),
    st.sampled_from([0.0, 1.0, -2.0, 3.5]),
)


def phrase(*ids: int, source: Span | None = None, weight: float = 0.0) -> Phrase:
    return Phrase(ids, f" text of {ids}", (source,) if source else (), weight)


@dataclass
class Entry:
    """What a phrase should be by now."""

    key: tuple[int, ...]
    active: bool = True
    idle: int = 0
    sources: set[Span] = field(default_factory=set)
    weights: list[float] = field(default_factory=list)


class VocabularyMachine(RuleBasedStateMachine):
    """Compare every operation with a plain list of entries in the order of their first add."""

    def __init__(self) -> None:
        super().__init__()
        self.vocabulary = DynamicVocabulary(STATIC)
        self.entries: list[Entry] = []
        self.seen_version = 0

    def numbers(self, data: st.DataObject) -> list[int]:
        return data.draw(st.lists(st.integers(0, len(self.entries) - 1), max_size=4))

    @rule(phrases=st.lists(PHRASES, max_size=5))
    def add(self, phrases: list[Phrase]) -> None:
        expected = []
        changed = False
        for one in phrases:
            entry = next((entry for entry in self.entries if entry.key == one.ids), None)
            if entry is None:
                entry = Entry(one.ids, active=False)
                self.entries.append(entry)
            largest = max(map(abs, entry.weights), default=0.0)
            changed |= not entry.active or abs(one.weight) > largest
            entry.active, entry.idle = True, 0
            entry.sources |= set(one.sources)
            entry.weights.append(one.weight)
            expected.append(STATIC + self.entries.index(entry))
        assert self.vocabulary.add(phrases) == expected
        if changed:
            self.version_must_have_risen()

    @precondition(lambda self: self.entries)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        numbers = self.numbers(data)
        changed = any(self.entries[number].active for number in numbers)
        self.vocabulary.remove([STATIC + number for number in numbers])
        for number in numbers:
            self.entries[number].active = False
        if changed:
            self.version_must_have_risen()

    @rule(data=st.data())
    def tick(self, data: st.DataObject) -> None:
        used = self.numbers(data) if self.entries else []
        self.vocabulary.tick([STATIC + number for number in used])
        for number, entry in enumerate(self.entries):
            entry.idle = 0 if number in used else entry.idle + 1

    @rule(idle=st.integers(0, 4))
    def expire(self, idle: int) -> None:
        old = [n for n, entry in enumerate(self.entries) if entry.active and entry.idle > idle]
        assert self.vocabulary.expire(idle) == [STATIC + number for number in old]
        for number in old:
            self.entries[number].active = False
        if old:
            self.version_must_have_risen()

    @rule(beyond=st.integers(0, 5), below=st.integers(0, STATIC - 1), data=st.data())
    def refuse_unknown_ids(self, beyond: int, below: int, data: st.DataObject) -> None:
        known = [STATIC + number for number in self.numbers(data)] if self.entries else []
        for unknown in (STATIC + len(self.entries) + beyond, below, -1):
            with pytest.raises(VocabularyError, match=str(unknown)):
                self.vocabulary.phrase(unknown)
            with pytest.raises(VocabularyError, match=str(unknown)):
                self.vocabulary.remove([*known, unknown])

    @rule(key=KEYS, foreign=st.sampled_from([STATIC, STATIC + 7, -1]))
    def refuse_foreign_phrases(self, key: tuple[int, ...], foreign: int) -> None:
        with pytest.raises(VocabularyError, match="another model's tokenizer"):
            self.vocabulary.add([Phrase((*key, foreign), " foreign")])

    def version_must_have_risen(self) -> None:
        assert self.vocabulary.version > self.seen_version

    @invariant()
    def version_never_falls(self) -> None:
        assert self.vocabulary.version >= self.seen_version
        self.seen_version = self.vocabulary.version

    @invariant()
    def every_id_is_still_its_own_phrase(self) -> None:
        assert self.vocabulary.size == len(self.entries)
        for number, entry in enumerate(self.entries):
            known = self.vocabulary.phrase(STATIC + number)
            assert known.ids == entry.key
            assert self.vocabulary.id_of(known) == STATIC + number
            assert set(known.sources) == entry.sources
            assert abs(known.weight) == max(map(abs, entry.weights))

    @invariant()
    def every_view_shows_the_same_active_phrases(self) -> None:
        flags = [entry.active for entry in self.entries]
        keys = [entry.key for entry in self.entries]
        active = [key for key, flag in zip(keys, flags, strict=True) if flag]
        assert [one.ids for one in self.vocabulary] == active
        assert len(self.vocabulary) == len(active)
        assert [Phrase(key, "") in self.vocabulary for key in keys] == flags
        shown = self.vocabulary.snapshot()
        assert shown.version == self.vocabulary.version
        assert list(map(bool, shown.active)) == flags
        assert [one.ids for one in shown.phrases] == keys
        assert [one.weight for one in shown.phrases] == list(shown.weights)


TestAnyOrderOfOperations = VocabularyMachine.TestCase
TestAnyOrderOfOperations.settings = settings(max_examples=60, stateful_step_count=25)


class TestAdding:
    def test_what_it_begins_with_gets_the_first_ids(self) -> None:
        vocabulary = DynamicVocabulary(STATIC, [phrase(1), phrase(2), phrase(1)])
        assert [one.ids for one in vocabulary] == [(1,), (2,)]
        assert vocabulary.id_of(phrase(2)) == STATIC + 1

    def test_a_phrase_that_comes_back_keeps_id_and_provenance(self) -> None:
        first, second = Span("a.txt", 0, 3), Span("b.txt", 4, 7)
        vocabulary = DynamicVocabulary(STATIC, [phrase(1), phrase(2, source=first)])
        vocabulary.remove([STATIC + 1])
        assert phrase(2) not in vocabulary
        before = vocabulary.version
        assert vocabulary.add([phrase(2, source=second)]) == [STATIC + 1]
        assert vocabulary.version > before
        assert phrase(2) in vocabulary
        assert vocabulary.phrase(STATIC + 1).sources == (first, second)

    def test_the_weight_that_is_larger_in_size_wins_and_is_a_change(self) -> None:
        vocabulary = DynamicVocabulary(STATIC, [phrase(1, weight=1.0), phrase(2)])
        before = vocabulary.version
        vocabulary.add([phrase(1, weight=-4.0)])
        assert vocabulary.version > before
        vocabulary.add([phrase(1, weight=2.0)])
        assert list(vocabulary.snapshot().weights) == [-4.0, 0.0]

    def test_nothing_to_add_is_no_change(self) -> None:
        vocabulary = DynamicVocabulary(STATIC, [phrase(1)])
        before = vocabulary.version
        assert vocabulary.add([]) == []
        assert vocabulary.version == before

    @pytest.mark.parametrize("foreign", [STATIC, STATIC + 1, -1])
    def test_a_foreign_phrase_is_named_with_its_ids(self, foreign: int) -> None:
        with pytest.raises(VocabularyError, match=rf"{foreign}.*\|V\| is {STATIC}"):
            DynamicVocabulary(STATIC, [phrase(1, foreign)])

    def test_the_last_token_of_v_is_no_foreign_one(self) -> None:
        assert DynamicVocabulary(STATIC).add([phrase(STATIC - 1, 0)]) == [STATIC]

    def test_a_refused_add_leaves_no_change_under_the_old_version(self) -> None:
        vocabulary = DynamicVocabulary(STATIC, [phrase(1)])
        before = vocabulary.version, [one.ids for one in vocabulary]
        with pytest.raises(VocabularyError):
            vocabulary.add([phrase(2), phrase(STATIC)])
        after = vocabulary.version, [one.ids for one in vocabulary]
        assert after == before or after[0] > before[0]

    @pytest.mark.parametrize("size", [0, -1])
    def test_v_cannot_be_empty(self, size: int) -> None:
        with pytest.raises(VocabularyError, match="static_size"):
            DynamicVocabulary(size)


class TestRemoving:
    def test_an_unknown_id_among_known_ones_removes_none(self) -> None:
        vocabulary = DynamicVocabulary(STATIC, [phrase(1), phrase(2)])
        before = vocabulary.version
        with pytest.raises(VocabularyError, match=f"{STATIC} to {STATIC + 1}"):
            vocabulary.remove([STATIC, STATIC + 2])
        assert (len(vocabulary), vocabulary.version) == (2, before)

    def test_removing_twice_is_harmless(self) -> None:
        vocabulary = DynamicVocabulary(STATIC, [phrase(1), phrase(2)])
        vocabulary.remove([STATIC, STATIC])
        vocabulary.remove([STATIC])
        assert [one.ids for one in vocabulary] == [(2,)]

    def test_ids_may_come_from_an_iterator_over_the_vocabulary(self) -> None:
        vocabulary = DynamicVocabulary(STATIC, [phrase(1), phrase(2)])
        vocabulary.remove(vocabulary.id_of(one) for one in vocabulary)
        assert (len(vocabulary), vocabulary.size) == (0, 2)

    @given(idle=st.integers(0, 5), ticks=st.integers(0, 8))
    def test_a_phrase_may_go_unused_for_so_many_ticks_and_no_more(
        self, idle: int, ticks: int
    ) -> None:
        vocabulary = DynamicVocabulary(STATIC, [phrase(1), phrase(2)])
        for _ in range(ticks):
            vocabulary.tick([STATIC])
        assert vocabulary.expire(idle) == ([STATIC + 1] if ticks > idle else [])
        assert phrase(1) in vocabulary

    def test_what_comes_back_has_its_time_again(self) -> None:
        vocabulary = DynamicVocabulary(STATIC, [phrase(1)])
        for _ in range(5):
            vocabulary.tick()
        assert vocabulary.expire(2) == [STATIC]
        vocabulary.add([phrase(1)])
        assert vocabulary.expire(2) == []

    def test_expiring_nothing_is_no_change(self) -> None:
        vocabulary = DynamicVocabulary(STATIC, [phrase(1)])
        before = vocabulary.version
        vocabulary.expire(3)
        assert vocabulary.version == before


class TestSnapshot:
    def test_it_holds_the_phrases_from_an_index_and_the_state_of_all(self) -> None:
        vocabulary = DynamicVocabulary(STATIC, [phrase(1), phrase(2, weight=2.0), phrase(3)])
        vocabulary.remove([STATIC])
        shown = vocabulary.snapshot(since=2)
        assert (shown.version, shown.phrases) == (vocabulary.version, [phrase(3)])
        assert list(map(bool, shown.active)) == [False, True, True]
        assert list(shown.weights) == [0.0, 2.0, 0.0]

    def test_it_does_not_follow_later_changes(self) -> None:
        vocabulary = DynamicVocabulary(STATIC, [phrase(1)])
        shown = vocabulary.snapshot()
        iterator = iter(vocabulary)
        vocabulary.add([phrase(2), phrase(1, weight=5.0)])
        vocabulary.remove([STATIC])
        assert shown.phrases == [phrase(1)]
        assert (list(map(bool, shown.active)), list(shown.weights)) == ([True], [0.0])
        assert list(iterator) == [phrase(1)]


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def run_together(*works: Callable[[], object]) -> list[BaseException]:
    """Run each in a thread of its own and return what they raised."""
    raised: list[BaseException] = []
    barrier = threading.Barrier(len(works))

    def guarded(work: Callable[[], object]) -> None:
        barrier.wait()
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


@pytest.mark.usefixtures("frequent_switches")
class TestThreads:
    def test_concurrent_adds_and_removes_keep_every_id_and_source(self) -> None:
        vocabulary = DynamicVocabulary(1000)
        pool = list(range(300))
        ids: dict[str, dict[int, int]] = {}

        def work(name: str) -> Callable[[], None]:
            order = random.Random(name).sample(pool, len(pool))
            mine = ids.setdefault(name, {})

            def add_and_remove() -> None:
                for number in order:
                    (mine[number],) = vocabulary.add([phrase(number, source=Span(name, 0, number))])
                    vocabulary.tick([mine[number]])
                    if number % 3 == 0:
                        vocabulary.remove([mine[number]])
                    vocabulary.snapshot()

            return add_and_remove

        names = ["one", "two", "three", "four"]
        assert run_together(*map(work, names)) == []
        assert vocabulary.size == len(pool)
        for number in pool:
            (phrase_id,) = {ids[name][number] for name in names}
            known = vocabulary.phrase(phrase_id)
            assert known.ids == (number,)
            assert {span.document for span in known.sources} == set(names)
        assert sorted(one.ids[0] for one in vocabulary) == [n for n in pool if n % 3]

    def test_every_concurrent_change_raises_the_version(self) -> None:
        vocabulary = DynamicVocabulary(1000)

        def change(begin: int) -> Callable[[], None]:
            def add_and_remove() -> None:
                for number in range(begin, begin + 300):
                    vocabulary.remove(vocabulary.add([phrase(number)]))

            return add_and_remove

        assert run_together(change(0), change(300), change(600)) == []
        assert vocabulary.version == 3 * 300 * 2

    def test_reading_at_any_moment_of_an_add_never_fails(self) -> None:
        vocabulary = DynamicVocabulary(1000, [phrase(5)])
        newest = phrase(1, 2)
        raised: list[BaseException] = []
        readers: list[threading.Thread] = []

        def read() -> None:
            try:
                phrase_id = vocabulary.id_of(newest)
                if phrase_id is not None:
                    assert vocabulary.phrase(phrase_id) == newest
                assert len(list(vocabulary)) in (1, 2)
                assert (newest in vocabulary) in (False, True)
            except BaseException as error:
                raised.append(error)

        def read_now(frame: FrameType, event: str, _: object) -> object:
            if event == "line" and frame.f_code.co_filename == univerb.vocabulary.__file__:
                readers.append(threading.Thread(target=read))
                readers[-1].start()
                # A reader may have to wait until the add is done, but not fail.
                readers[-1].join(0.05)
            return read_now

        def write() -> None:
            sys.settrace(read_now)
            vocabulary.add([newest])
            sys.settrace(None)

        assert run_together(write) == []
        for reader in readers:
            reader.join()
        assert len(readers) > 3
        assert raised == []

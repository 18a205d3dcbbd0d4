import re

import pytest
import torch
from hypothesis import given, strategies as st

from joma._core.errors import JomaError
from joma.data import text
from joma.data.basic_english import tokenise

# The published rules, one after the other.
RULES = [("'", " ' "), ('"', ""), (r"\.", " . "), ("<br />", " "), (",", " , ")]
RULES += [(r"\(", " ( "), (r"\)", " ) "), ("!", " ! "), (r"\?", " ? "), (";", " "), (":", " ")]


@given(
    st.lists(st.sampled_from([*"aB '\".,()!?;:\n<>/", "<br />", "<br", "É", "<unk>"])).map("".join)
)
def test_tokens_follow_the_published_rules_in_their_order(line):
    expected = line.lower()
    for pattern, replacement in RULES:
        expected = re.sub(pattern, replacement, expected)
    assert tokenise(line) == expected.split()


@given(st.lists(st.text(alphabet="ab .'<br/>;")))
def test_a_text_is_tokenised_like_its_lines(lines):
    whole = tokenise("\n".join(lines))
    assert whole == [token for line in lines for token in tokenise(line)]


@pytest.fixture(scope="module")
def wikitext(shared):
    return text.read(shared / "data" / "wikitext-2")


def test_wikitext_2_has_the_published_counts(wikitext):
    assert len(wikitext.vocabulary) == 28_782
    splits = (wikitext.train, wikitext.valid, wikitext.test)
    assert [len(split) for split in splits] == [2_049_990, 214_417, 241_859]
    assert text.window_count(text.batchify(wikitext.train, 20), 35) == 2_929


def test_wikitext_ids_fall_in_frequency(wikitext):
    counts = torch.bincount(wikitext.train, minlength=28_782)[1:]
    assert (counts.diff() <= 0).all() and counts[-1] >= 1
    assert wikitext.vocabulary.words[:3] == ("<unk>", "the", ",")


def test_ties_are_alphabetical_and_the_rest_is_unknown():
    known = text.vocabulary(["z", "b", "a", "z", "c"], size=3)
    assert known.words == ("<unk>", "z", "a")
    assert known.encode(["a", "b", "never", "<unk>", "z"]).tolist() == [2, 0, 0, 0, 1]


def test_unknown_words_of_the_text_are_not_counted_twice():
    assert text.vocabulary(["<unk>", "<unk>", "a"]).words == ("<unk>", "a")


def test_the_vocabulary_knows_the_training_split_only():
    found = text.corpus("a b a", "a c", "b", size=None)
    assert found.vocabulary.words == ("<unk>", "a", "b")
    assert found.valid.tolist() == [1, 0] and found.test.tolist() == [2]


def test_a_cut_vocabulary_is_the_start_of_the_full_one():
    words = ["the", "cat", "and", "the", "dog", "and", "the", "bird"]
    assert text.vocabulary(words, 3).words == text.vocabulary(words).words[:3]


def test_rows_continue_and_the_remainder_is_dropped():
    rows = text.batchify(torch.arange(11), 3)
    assert rows.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


@given(st.integers(2, 60), st.integers(1, 12))
def test_windows_cover_each_target_once_and_in_order(steps, bptt):
    rows = text.batchify(torch.arange(2 * steps), 2)
    found = list(text.windows(rows, bptt))
    assert len(found) == text.window_count(rows, bptt)
    assert torch.equal(torch.cat([w.inputs for w in found], 1), rows[:, :-1])
    assert torch.equal(torch.cat([w.targets for w in found], 1), rows[:, 1:])
    assert all(w.inputs.shape[1] == bptt for w in found[:-1])


def test_refuses_windows_past_the_epoch():
    with pytest.raises(IndexError, match="numbered 0 to 2; got 3"):
        text.window(text.batchify(torch.arange(20), 2), 3, bptt=3)


def test_refuses_rows_without_a_target():
    with pytest.raises(ValueError, match="5 tokens are too few"):
        text.batchify(torch.arange(5), 3)


def test_a_directory_without_a_split_is_told_what_is_missing(tmp_path):
    (tmp_path / "train.txt").write_text("a")
    with pytest.raises(JomaError, match=r"lacks valid.txt, test.txt"):
        text.read(tmp_path)


def test_refuses_an_empty_vocabulary():
    with pytest.raises(ValueError, match="got size = 0"):
        text.vocabulary(["a"], size=0)

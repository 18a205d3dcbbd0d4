"""WikiText is found on this machine, or a sentence says where to put it."""

import pytest

from joma._core.errors import MissingDataError
from joma.data import wikitext


def write(folder):
    folder.mkdir(parents=True)
    for split in ("train", "valid", "test"):
        (folder / f"{split}.txt").write_text("a b a <unk>\n" * 3, encoding="utf-8")


def test_the_folder_of_the_caller_comes_first(tmp_path, monkeypatch):
    write(tmp_path / "mine" / "wikitext-2")
    write(tmp_path / "shared" / "data" / "wikitext-2")
    monkeypatch.setenv("JOMA_SHARED", str(tmp_path / "shared"))
    assert wikitext.folder() == tmp_path / "shared" / "data" / "wikitext-2"
    monkeypatch.setenv("JOMA_DATA", str(tmp_path / "mine"))
    assert wikitext.folder() == tmp_path / "mine" / "wikitext-2"
    assert len(wikitext.load(size=2).vocabulary) == 2


def test_a_missing_corpus_says_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("JOMA_SHARED", str(tmp_path / "nowhere"))
    monkeypatch.setenv("JOMA_DATA", str(tmp_path))
    with pytest.raises(MissingDataError, match="Set JOMA_DATA") as error:
        wikitext.load()
    assert str(tmp_path / "wikitext-2") in str(error.value) and "nowhere" in str(error.value)


def test_wikitext_2_has_the_published_counts(shared, monkeypatch):
    monkeypatch.setenv("JOMA_SHARED", str(shared))
    monkeypatch.delenv("JOMA_DATA", raising=False)
    text = wikitext.load()
    assert (len(text.vocabulary), len(text.train)) == (28_782, 2_049_990)

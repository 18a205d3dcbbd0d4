import importlib
import sys

import pytest

from joma._core.errors import MissingExtraError, UnknownNameError


def test_without_datasets_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.delitem(sys.modules, "joma.data.hub", raising=False)
    with pytest.raises(MissingExtraError, match=r"needs 'datasets'.* pip install 'joma\[hf\]'"):
        importlib.import_module("joma.data.hub")


@pytest.fixture
def hub():
    pytest.importorskip("datasets")
    return importlib.import_module("joma.data.hub")


@pytest.mark.hf
def test_rows_of_a_dataset_become_a_corpus(hub):
    rows = {"train": ["A cat .\n", "", "a dog"], "validation": ["the cat"], "test": ["dog"]}
    splits = {name: hub.Dataset.from_dict({"text": lines}) for name, lines in rows.items()}
    found = hub.from_datasets(splits)
    assert found.vocabulary.words == ("<unk>", "a", ".", "cat", "dog")
    assert found.train.tolist() == [1, 3, 2, 1, 4]
    assert found.valid.tolist() == [0, 3] and found.test.tolist() == [4]


@pytest.mark.hf
def test_the_word_level_versions_are_asked_for(hub, monkeypatch):
    asked = []

    def load_dataset(*names):
        asked.append(names)
        one = hub.Dataset.from_dict({"text": ["a"]})
        return {"train": one, "validation": one, "test": one}

    monkeypatch.setattr(hub, "load_dataset", load_dataset)
    hub.load("wikitext-103", size=1)
    assert asked == [("Salesforce/wikitext", "wikitext-103-v1")]


@pytest.mark.hf
def test_other_names_are_refused_with_a_hint(hub):
    with pytest.raises(UnknownNameError, match="Did you mean 'wikitext-2'"):
        hub.load("wikitext2")


@pytest.mark.hf
def test_a_missing_split_is_named(hub):
    with pytest.raises(ValueError, match="validation, test is missing among train"):
        hub.from_datasets({"train": hub.Dataset.from_dict({"text": ["a"]})})

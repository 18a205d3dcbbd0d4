"""The hub, as its stand-in plays it: ranges, faults, tags, redirects, tokens."""

import importlib
import json
import pickle
import shutil
import sys

import pytest
import torch
from safetensors.torch import save_file

from joma._core.errors import MissingExtraError
from joma.sources._errors import ChangedFileError, SourceError
from joma.sources._retry import Retry, retry_after
from joma.sources.hub import HubSource
from joma.sources.suite import SuiteSource
from standin.hub import KINDS, Faults, Hub
from unit.sources.conftest import RETRY

REVISIONS = ["step2", "step10", "step20", "step100"]


def same(found, expected):
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


def source(hub, which=None, **options):
    return HubSource("owner/model", which, endpoint=hub.url, **{"retry": RETRY, **options})


def test_without_the_client_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.delitem(sys.modules, "joma.sources.hub", raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install 'joma\[hub\]'"):
        importlib.import_module("joma.sources.hub")


@pytest.mark.parametrize("revision", REVISIONS)
def test_every_format_gives_the_tensors_bit_by_bit(hub, tensors, revision):
    found = source(hub)
    assert [r.name for r in found.revisions()] == REVISIONS
    same(found.read(revision, tensors), tensors)
    assert found.config(revision) == {"model_type": "gpt_neox"}


def test_a_revision_is_pinned_to_its_commit(hub):
    found = source(hub, "step10")
    (revision,) = found.revisions()
    assert found.index("step10").commit == revision.commit == found.pretrained("step10")["revision"]


def test_workers_get_the_source_by_value(hub, tensors):
    first = source(hub, "step*")
    first.revisions()
    copy = pickle.loads(pickle.dumps(first))  # noqa: S301
    hub.forget()
    same(copy.read("step10", ["mask"]), {"mask": tensors["mask"]})
    assert not [a for a in hub.log.asked if "/refs" in a]  # commits travel with the source


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_fault_passes(hub, tensors, kind):
    hub.faults = Faults(0.4, kinds=(kind,))
    found = source(hub, retry=Retry(attempts=30, first=0.002, longest=0.01))
    for revision in REVISIONS:
        same(found.read(revision, tensors), tensors)
    assert hub.log.faults[kind] > 0 and found.traffic.retries > 0


def test_a_fifth_of_all_answers_may_fail(hub, tensors):
    hub.faults = Faults(0.2)
    found = source(hub)
    for revision in REVISIONS:
        same(found.read(revision, tensors), tensors)
    assert sum(hub.log.faults.values()) > 5


def test_a_hub_that_stays_down_ends_with_a_sentence(hub):
    hub.faults = Faults(1.0, kinds=("500",))
    with pytest.raises(SourceError, match=r"answered 500, 3 times in a row\. Try again later"):
        source(hub, retry=Retry(attempts=3, first=0.001)).revisions()


def test_without_a_network_the_listing_gives_up_early():
    found = HubSource("a/b", endpoint="http://127.0.0.1:9", retry=Retry(attempts=99, first=0.001))
    with pytest.raises(SourceError, match=r"4 times in a row\. Is there a network\?"):
        found.revisions()


def test_the_wait_that_a_server_asks_for_is_kept():
    assert retry_after({"retry-after": "7"}) == 7
    assert retry_after({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0
    assert retry_after({"retry-after": "soon"}) == retry_after({}) == 0
    assert 0.25 <= Retry(first=0.5).wait(1) <= 0.5 and Retry().wait(50) <= 30


def test_a_file_that_changes_between_requests_is_noticed(hub, suite, tensors):
    found = source(hub)
    found.index("step10")
    shutil.copy(suite / "step10" / "model.safetensors", suite / "step10" / "new")
    (suite / "step10" / "new").rename(suite / "step10" / "model.safetensors")
    with pytest.raises(ChangedFileError, match="changed on the hub while it was being read"):
        found.read("step10", tensors)


def test_a_file_that_grows_is_noticed(hub, suite, tensors):
    found = source(hub, retry=Retry(attempts=2, first=0.001))
    found.index("step10")
    with open(suite / "step10" / "model.safetensors", "ab") as file:
        file.write(b"more")
    with pytest.raises(ChangedFileError):
        found.read("step10", tensors)


def test_an_address_that_expires_is_asked_for_again(hub, tensors):
    found = source(hub)
    found.index("step10")
    hub.signature = "2"
    same(found.read("step10", tensors), tensors)


def test_after_the_first_range_the_hub_itself_is_left_alone(hub):
    found = source(hub)
    found.index("step10")
    hub.forget()
    found.read("step10", ["layers.0.up", "layers.5.up"])
    assert not [a for a in hub.log.asked if "/resolve/" in a]


def test_a_token_goes_to_the_hub_and_nowhere_else(hub, tensors, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    found = source(hub)
    found.read("step10", tensors)
    assert hub.log.tokens_elsewhere == 0
    assert b"hf_secret" not in pickle.dumps(found)


def test_lists_that_come_in_pages_are_read_to_the_end(suite, tensors):
    for i in range(5):
        (suite / "step10" / f"a{i}.txt").write_text("x")
    with Hub(suite.parent.parent, page=2) as hub:
        same(source(hub).read("step10", ["mask"]), {"mask": tensors["mask"]})


def test_a_repository_that_is_not_there_is_named(hub):
    with pytest.raises(SourceError, match=r"no/thing/refs: not there \(404\)"):
        HubSource("no/thing", endpoint=hub.url, retry=RETRY).revisions()


def test_an_unknown_revision_names_close_ones(hub):
    with pytest.raises(SourceError, match=r"no revision 'step11'\. Did you mean"):
        source(hub).index("step11")


@pytest.mark.parametrize(
    "name", ["../x", "a/b/c", "a b/c", "<b>/x", "o/m?x=1", "o/m#", "", "o/..m"]
)
def test_a_repository_cannot_be_a_path_or_an_address(name):
    with pytest.raises(SourceError, match="is not a repository"):
        HubSource(name)


@pytest.mark.parametrize("revision", ["../main", "<script>", "a\x1b[2J", "..", "step1?x"])
def test_a_dangerous_revision_is_refused_before_anything_is_asked(hub, revision):
    with pytest.raises(SourceError, match="Nothing is read under such a name"):
        source(hub).index(revision)
    assert hub.log.requests == 0


def test_a_repository_per_checkpoint_makes_a_suite(tmp_path, monkeypatch):
    for seed in (0, 1):
        for step in ("0k", "20k", "100k"):
            folder = tmp_path / "google" / f"multiberts-seed_{seed}-step_{step}" / "main"
            folder.mkdir(parents=True)
            save_file({"w": torch.full((2,), float(seed))}, folder / "model.safetensors")
            (folder / "config.json").write_text(json.dumps({"model_type": "bert"}))
    with Hub(tmp_path) as hub:
        monkeypatch.setattr("joma.sources.hub.constants.ENDPOINT", hub.url)
        found = SuiteSource.opened("hub:google/multiberts-seed_*-step_*@20000..")
        revisions = found.revisions()
        assert [(r.run, r.step) for r in revisions] == [
            ("google/multiberts-seed_0", 20000),
            ("google/multiberts-seed_0", 100000),
            ("google/multiberts-seed_1", 20000),
            ("google/multiberts-seed_1", 100000),
        ]
        assert found.read(revisions[-1].name, ["w"])["w"].tolist() == [1.0, 1.0]
        assert found.config(revisions[0].name) == {"model_type": "bert"}
        assert found.spec == "suite:hub:google/multiberts-seed_*-step_*@20000.."
        assert found.traffic.requests > 0
        assert len(pickle.loads(pickle.dumps(found)).revisions()) == 4  # noqa: S301

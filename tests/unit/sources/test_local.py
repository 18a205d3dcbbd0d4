"""A directory of checkpoints: the tensors that were written, and only their bytes."""

import os
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file

from joma import sources
from joma.sources._errors import ChangedFileError, HostileFileError, SourceError
from joma.sources.base import AbstractSource
from joma.sources.local import LocalSource
from joma.sources.memory import MemorySource

REVISIONS = ["step2", "step10", "step20", "step100"]


def same(found, expected):
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


def test_each_directory_is_a_revision_in_order(suite):
    (suite / "notes").mkdir()
    found = sources.open(str(suite)).revisions()
    assert [r.name for r in found] == REVISIONS
    assert {r.run for r in found} == {"model"}


@pytest.mark.parametrize("revision", REVISIONS)
def test_every_format_gives_the_tensors_bit_by_bit(suite, tensors, revision):
    source = LocalSource(suite)
    index = source.index(revision)
    assert index.shapes == {name: tuple(t.shape) for name, t in tensors.items()}
    same(source.read(revision, tensors), tensors)
    assert source.config(revision) == {"model_type": "gpt_neox"}


def test_our_header_says_what_the_safetensors_library_says(suite):
    path = suite / "step10" / "model.safetensors"
    same(LocalSource(suite).read("step10", load_file(path)), load_file(path))


def test_views_and_parameters_of_a_bin_file_are_rebuilt(tmp_path):
    base = torch.arange(60.0).view(6, 10)
    saved = {
        "transposed": base.t(),
        "rows": base[2:4],
        "columns": base[:, 3:5],
        "parameter": torch.nn.Parameter(base.half()),
        "same": base,
    }
    torch.save(saved, tmp_path / "pytorch_model.bin")
    source = LocalSource(tmp_path)
    same(source.read("main", saved), saved)
    assert source.traffic.bytes < 2 * (60 * 4 + 60 * 2) + 8000  # one storage, read once


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_pickle_protocol_of_torch_is_read(tmp_path, protocol):
    saved = {"w": torch.randn(3, 4)}
    torch.save(saved, tmp_path / "pytorch_model.bin", pickle_protocol=protocol)
    same(LocalSource(tmp_path).read("main", ["w"]), saved)


def test_a_state_dict_of_a_module_is_read(tmp_path):
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    torch.save(module.state_dict(), tmp_path / "pytorch_model.bin")
    same(LocalSource(tmp_path).read("main", module.state_dict()), module.state_dict())


def test_a_legacy_file_is_refused_with_what_to_do(tmp_path):
    path = tmp_path / "pytorch_model.bin"
    torch.save({"w": torch.ones(2)}, path, _use_new_zipfile_serialization=False)
    with pytest.raises(HostileFileError, match=r"not a zip file.*save it again"):
        LocalSource(tmp_path).index("main")


def test_only_the_bytes_asked_for_are_read(suite, tensors):
    for revision in REVISIONS:
        source = LocalSource(suite)
        headers = source.index(revision).overhead
        before = source.traffic.bytes
        source.read(revision, ["layers.3.up"])
        slot = 200  # local header and descriptor of a zip entry, with their padding
        assert source.traffic.bytes - before <= tensors["layers.3.up"].numel() * 8 + slot
        assert headers < 20_000


def test_a_missing_tensor_names_close_ones(suite):
    with pytest.raises(SourceError, match=r"no tensor 'layers.3.upp'. Did you mean 'layers.3.up'"):
        LocalSource(suite).read("step10", ["layers.3.upp"])


def test_a_file_that_changes_between_reads_is_noticed(suite):
    source = LocalSource(suite)
    source.index("step10")
    save_file({"layers.3.up": torch.zeros(5)}, suite / "step10" / "model.safetensors")
    with pytest.raises(ChangedFileError, match="changed while it was being read"):
        source.read("step10", ["layers.3.up"])


@pytest.mark.parametrize("revision", ["../model/step10", "..", "/etc", "step10/../step10", "a\x1b"])
def test_a_revision_cannot_lead_out_of_the_directory(suite, revision):
    with pytest.raises(SourceError):
        LocalSource(suite).index(revision)


def test_a_pipe_in_place_of_weights_does_not_hang(tmp_path):
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(SourceError, match="0 files that could be its weights"):
        LocalSource(tmp_path).index("main")


def test_a_source_pickles_without_what_it_has_read(suite, tensors):
    source = sources.open(f"local:{suite}@step2..step20")
    source.read("step2", ["mask"])
    copy = pickle.loads(pickle.dumps(source))  # noqa: S301
    assert copy.spec == source.spec and copy.revisions() == source.revisions()
    assert copy.traffic.bytes == 0 and len(pickle.dumps(source)) < 2000
    same(copy.read("step2", ["mask"]), {"mask": tensors["mask"]})


def test_what_is_not_a_directory_says_what_a_source_is():
    with pytest.raises(SourceError, match=r"is not a directory\. A source is"):
        sources.open("no/such/place")


def test_a_directory_without_weights_says_so(tmp_path):
    with pytest.raises(SourceError, match="holds no weights"):
        LocalSource(tmp_path).revisions()


@pytest.mark.parametrize("name", sources.registry.names())
def test_every_source_is_an_abstract_source_with_a_docstring(name):
    source = sources.registry.load(name)
    assert issubclass(source, AbstractSource) and source.__doc__


def test_memory_holds_tensors_under_revision_names(tensors):
    source = MemorySource({"step10": tensors, "step2": tensors}, {"model_type": "x"})
    assert [r.name for r in source.revisions()] == ["step2", "step10"]
    same(source.read("step2", tensors), tensors)
    assert source.index("step2").nbytes == sum(t.nbytes for t in tensors.values())
    assert source.config("step10") == {"model_type": "x"}
    with pytest.raises(SourceError, match="cannot be opened by name"):
        sources.open("memory:x")


def test_directories_make_a_suite(suite):
    source = sources.open(f"suite:{suite.parent}/mo*@2..10")
    assert [(r.name, r.step) for r in source.revisions()] == [
        (f"{suite}@step2", 2),
        (f"{suite}@step10", 10),
    ]

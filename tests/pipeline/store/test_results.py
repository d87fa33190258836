"""Results are read the same on every host."""

import errno
import os

import pytest

from kernel_pipeline.errors import UserError
from pipeline.store import evidence, results
from pipeline.store.results import ceilings_path, environment_path, folder_for, folders_of, load, profile_path
from tests.factory import CPU, H100, H200, ceilings, environment, grid, write_results


def quiet(sentence: str) -> None:
    raise AssertionError(f"unexpected warning: {sentence}")


def test_everything_that_was_written_is_read(tmp_path):
    rows = grid(kernels=("gelu", "softmax"), gpus=(CPU, H200, H100))
    found = load(write_results(tmp_path, rows), quiet)
    assert sorted(row.key for row in found.measurements) == sorted(row.key for row in rows)
    assert found.kernels == ["gelu", "softmax"]
    assert found.gpus == [H100, H200, CPU], "processors come after GPUs"
    assert found.environments[H200] == environment(H200)
    assert found.ceilings[CPU] == ceilings(CPU)


@pytest.mark.parametrize("path_of", [environment_path, ceilings_path])
def test_a_broken_description_of_a_machine_is_a_sentence(tmp_path, path_of):
    write_results(tmp_path, grid())
    path_of(tmp_path, H200).write_text("{}")
    with pytest.raises(UserError, match=r"not readable as .*delete it and run `dvc repro`"):
        load(tmp_path, quiet)


def test_a_cpus_results_lie_beside_the_repositorys_own(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(results, "LOCAL", tmp_path / "local")
    own = tmp_path / "results"
    assert folder_for(own, "cuda") == own and folder_for(tmp_path / "mine", "cpu") == tmp_path / "mine"
    write_results(own, grid(gpus=(H200,)))
    assert folders_of(own) == [own], "nothing was measured on this host"
    write_results(folder_for(own, "cpu"), grid(gpus=(CPU,)))
    profile = profile_path(tmp_path / "local/results", "softmax", CPU)
    profile.parent.mkdir(parents=True)
    profile.write_text("")
    assert load(own, quiet).gpus == [H200, CPU]
    alone = load(own, quiet, local=False)
    assert (alone.gpus, set(alone.environments), set(alone.ceilings)) == ([H200], {H200}, {H200})
    assert list(evidence.load(own, quiet).profiles) == [("softmax", CPU)]
    assert not evidence.load(own, quiet, local=False).profiles


def test_a_folder_that_can_not_be_made_is_a_sentence_with_the_systems_reason(tmp_path, monkeypatch):
    def refuse(path, mode=0o777):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(UserError, match=rf"no folder can be made in {tmp_path} \(Read-only file system\); "):
        results.asked_for(tmp_path / "new" / "file")


def test_a_name_that_is_too_long_is_a_sentence(tmp_path):
    with pytest.raises(UserError, match=rf"no folder can be made in {tmp_path} \(File name too long\); "):
        results.asked_for(tmp_path / ("a" * 300) / "file")

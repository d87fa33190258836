"""``kernel-pipeline new project=`` makes a project, and commands work in the project they are started in."""

from pathlib import Path

import pytest
import yaml

from kernel_pipeline import files
from kernel_pipeline.errors import UserError
from pipeline import ROOT, new
from pipeline.command.errors import validated
from pipeline.command.options import NewConfig
from pipeline.points.new_project import VERSION
from tests.processes import completed
from tests.project import python


@pytest.fixture
def project(tmp_path: Path) -> Path:
    new.run(NewConfig(kernel=None, project=tmp_path / "mine"))
    return tmp_path / "mine"


def test_each_stage_runs_the_installed_package_and_needs_only_what_a_project_has(project: Path) -> None:
    text = (project / "dvc.yaml").read_text()
    stages = yaml.safe_load(text)["stages"]
    ours = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    assert list(stages) == list(ours)
    outs = {
        next(iter(out)) if isinstance(out, dict) else out for one in stages.values() for out in one["outs"]
    }
    assert VERSION in outs
    for name, stage in stages.items():
        commands = [stage["cmd"]] if isinstance(stage["cmd"], str) else stage["cmd"]
        assert commands[0].startswith(f"kernel-pipeline {name} "), name
        deps = stage.get("deps", [])
        assert (VERSION in deps) == (name != "environment")
        # The stage environment makes these folders.
        made = outs | {
            dep for dep in deps if dep.startswith(("local/", "results/")) or dep in ("reports", "results")
        }
        assert [dep for dep in deps if dep not in made and not (project / dep).exists()] == []


def test_a_projects_files_name_the_installed_command(project: Path) -> None:
    for path in (one for one in project.rglob("*") if one.is_file() and ".git" not in one.parts):
        assert "python -m pipeline" not in path.read_text(), path
    assert yaml.safe_load((project / "params.yaml").read_text())["kernels"] == "relu"
    listed = completed(["make"], cwd=project, check=True).stdout
    assert "repro" in listed and "smoke" in listed


@pytest.mark.parametrize("more", [{"kernel": "mine"}, {"kernel": None, "from": "launcher.py"}], ids=str)
def test_a_project_goes_with_no_other_option(tmp_path: Path, more: dict[str, str | None]) -> None:
    with pytest.raises(UserError, match="project= goes with no other option"):
        validated(NewConfig, {"project": tmp_path / "mine", **more})


def test_a_project_overwrites_nothing(project: Path) -> None:
    (project / "dvc.yaml").write_text("mine")
    with pytest.raises(UserError, match="exists already, and this command overwrites no file"):
        new.run(NewConfig(kernel=None, project=project))
    assert (project / "dvc.yaml").read_text() == "mine"


def test_the_project_is_the_nearest_above_the_working_folder(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in (project, project / "kernels" / "relu"):
        monkeypatch.chdir(folder)
        assert files.project() == project
    monkeypatch.chdir(project.parent)
    assert files.project() == ROOT
    (project / "kernel_pipeline").mkdir()
    monkeypatch.chdir(project)
    assert files.project() == ROOT, "another checkout runs its own code"


def test_commands_know_the_projects_kernels_by_name_beside_the_librarys(project: Path) -> None:
    shown = python("-m", "pipeline.sweep", "--help", "kernel=relu,square", cwd=project, PYTHONPATH=str(ROOT))
    assert shown.returncode == 0, shown.stderr
    assert "\nrelu: " in shown.stdout and "\nsquare: " in shown.stdout
    (project / "kernels" / "relu").rename(project / "kernels" / "square")
    same = python("-m", "pipeline.sweep", "kernel=square", cwd=project, PYTHONPATH=str(ROOT))
    assert same.returncode == 2 and "both kernels would share a ledger" in same.stderr

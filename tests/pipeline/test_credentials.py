"""A tracker's password or token is never written, printed or passed to a child where others can read it."""

import subprocess
import threading
from pathlib import Path
from urllib.parse import quote

import pytest
import requests

from kernel_pipeline.errors import UserError
from kernel_pipeline.records.credentials import hidden, public, taken_apart
from pipeline.command.options import SweepConfig
from pipeline.command.run import run_stage
from pipeline.store import commit
from pipeline.tracking import connection
from pipeline.tracking.store import opened
from tests.commands import exit_code
from tests.mlflow_store import behind_a_password, log, run_ids, server
from tests.planted.tree import cpu_tree

SECRET = "s3/cr@et:'{$(,%"
"""An unencoded password with all characters that are special in addresses, overrides or a shell."""


@pytest.mark.parametrize(
    ("uri", "shown", "user", "password"),
    [
        ("http://host:5000/mlflow", "http://host:5000/mlflow", None, None),
        ("http://me:secret@host:5000/mlflow", "http://host:5000/mlflow", "me", "secret"),
        ("http://me:p@ss/word@host:5000", "http://host:5000", "me", "p@ss/word"),
        ("http://me:p%40ss%2Fword@host", "http://host", "me", "p@ss/word"),
        ("http://me:12/34@host", "http://host", "me", "12/34"),
        ("http://me:pass?word#@host/mlflow", "http://host/mlflow", "me", "pass?word#"),
        ("http://me:two words@host", "http://host", "me", "two words"),
        ("http://token@host", "http://host", "token", None),
        ("http://host/?token=secret", "http://host/", None, None),
        ("postgresql+psycopg2://me:p/w@host/db?sslmode=on", "postgresql+psycopg2://host/db", "me", "p/w"),
        ("sqlite:////scratch/me@work/mlflow.db", "sqlite:////scratch/me@work/mlflow.db", None, None),
        ("me:secret@host:5000", "host:5000", None, None),
    ],
)
def test_an_address_is_taken_apart_and_shown_without_its_credentials(
    uri: str, shown: str, user: str | None, password: str | None
) -> None:
    address = taken_apart(uri)
    assert (public(uri), address.user, address.password) == (shown, user, password)
    assert taken_apart(address.whole) == address, "encoded, it is the same"
    assert "secret" not in repr(address) and (password is None or password not in repr(address))
    assert hidden(f"can't reach {uri}: refused", [uri]) == f"can't reach {shown}: refused"


@pytest.mark.parametrize(
    ("said", "printed"),
    [
        ("could not connect to http://me:secret@host: refused", "could not connect to http://host: refused"),
        ("no 'http://host/x?sig=secret&y=1'", "no 'http://host/x?sig=...&y=...'"),
        ("password secret of me, s%2Fecret", "password ... of me, s%2Fecret"),
        ("bearer token-of-mine", "bearer ..."),
        ("sqlite:////scratch/me@work/mlflow.db", "sqlite:////scratch/me@work/mlflow.db"),
    ],
)
def test_a_sentence_is_shown_without_credentials(
    said: str, printed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@host")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "token-of-mine")
    assert hidden(said) == printed


@pytest.mark.parametrize(
    "word",
    [
        *(f"{name}=http://me:{SECRET}@127.0.0.1:9" for name in ("tracking", "trackin.uri", "mlflow", "seed")),
        *(f"{name}=[http://me:s3cret@127.0.0.1:9]" for name in ("tracking.uri", "seed")),
        f"http://me:{SECRET}@127.0.0.1:9",
        "tracking.uri=me:s3cret@host",
        "tracking.uri=http://127.0.0.1:9/?token=s3cret",
        "tracking.uri=http://s3cret@127.0.0.1:9",
        f"~tracking.uri=http://me:{SECRET}@127.0.0.1:9",
        f"tracking.uri=http://me:{SECRET}@127.0.0.1:9",
    ],
)
def test_no_mistake_prints_a_password(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    def run(config: SweepConfig) -> None:
        assert "tracking" not in config.model_dump(mode="json") and "127.0.0.1" not in repr(config)
        with opened(connection.store_uri(config.tracking.name, config.tracking.uri)):
            raise AssertionError("nobody listens there")

    def to_sentence(config: SweepConfig) -> None:
        try:
            run(config)
        except connection.TrackerError as error:
            raise UserError(str(error)) from error

    assert commit.words(["kernel=softmax", word]) in (["kernel=softmax"], ["kernel=softmax", hidden(word)])
    code = exit_code(run_stage, "sweep", SweepConfig, to_sentence, "kernel=softmax", "device=cpu", word)
    said = "".join(capsys.readouterr())
    assert code == 2 and said.startswith("error: ") and said.count("\n") == 1
    assert not [part for part in ("s3", "cr@et", "et:'", "ret") if part in said], said


def test_an_empty_address_is_no_address(capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in (
        (["tracking.uri="], "tracking: uri is empty; write tracking.uri=ADDRESS, or leave it out."),
        (["tracking=none", "tracking.uri=x"], "tracking: none publishes nothing, so uri has no use; leave"),
    ):
        given = ("kernel=softmax", "device=cpu", *words)
        assert exit_code(run_stage, "sweep", SweepConfig, lambda config: None, *given) == 2
        assert capsys.readouterr().err.startswith(f"error: {said}")


@pytest.mark.long
@pytest.mark.slow
def test_a_sweep_publishes_to_a_server_behind_a_password_and_keeps_it_to_itself(tmp_path: Path) -> None:
    """The password is given on the command line. It appears in the sweep's own command line, but in no
    child's."""
    tree = cpu_tree(tmp_path, "quick")
    folder = tmp_path / "server"
    folder.mkdir()
    titles: set[bytes] = set()
    ended = threading.Event()

    def watch(sweep: subprocess.Popen[str]) -> None:
        while not ended.wait(0.02):
            for title in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    if int(title.parent.name) != sweep.pid and (title.parent / "cwd").readlink() == tree.root:
                        titles.add(title.read_bytes())
                except OSError:
                    continue

    with server(folder) as address, behind_a_password(address, "me", SECRET) as guarded:
        with_password = guarded.replace("://", f"://me:{SECRET}@")
        # With two sizes this is a multirun, whose overrides Hydra writes to a file.
        words = ["kernel=quick", "provider=mul", "timing.cache=hot", "tracking=local", "size=64,128"]
        sweep = tree.start(*words, f"tracking.uri={with_password}", "-m")
        watcher = threading.Thread(target=watch, args=[sweep])
        watcher.start()
        own = Path(f"/proc/{sweep.pid}/cmdline").read_bytes()
        out, err = sweep.communicate()
        ended.set()
        watcher.join()
        assert (sweep.returncode, err) == (0, ""), out
        links = [line for line in out.splitlines() if line.startswith("Open ")]
        assert len(links) == 2 and links[0].startswith(f"Open {guarded}/#/experiments/1/runs?")
        found = run_ids(tmp_path / "server" / "mlflow.db")
        measured = [run_id for name, run_id in found.items() if name.startswith("quick @ ")]
        assert len(measured) == len(links)
        for run_id in measured:
            asked = {"run_id": run_id}
            run = requests.get(f"{address}/api/2.0/mlflow/runs/get", asked, timeout=10).json()["run"]
            assert run["info"]["run_name"].startswith("quick @ cpu-") and run["info"]["status"] == "FINISHED"
            artifacts = requests.get(f"{address}/api/2.0/mlflow/artifacts/list", asked, timeout=10).json()
            assert [file["path"] for file in artifacts["files"]] == ["runs"]
        # publish accepts the password, and reports a wrong password without printing it.
        log(tree.root, with_password, input=None, runs=tree.root / "outputs" / "runs")
        with pytest.raises(UserError) as refused:
            log(tree.root, with_password.replace("s3", "s4"), input=None, runs=tree.root / "outputs" / "runs")
        assert "cr@et" not in str(refused.value) and quote("cr@et", safe="") not in str(refused.value)

    assert not (tree.root / "mlflow.db").exists(), "not the repository's own"
    assert any(b"kernel_pipeline.execution.fork_server" in title for title in titles)
    parts = [part.encode() for part in (SECRET, quote(SECRET, safe=""), quote(SECRET), "cr@et", "cr%40et")]
    where = {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert any(name.endswith(".lock") for name in where), "what says who measures"
    # Until a child executes its program, it shows its parent's command line.
    where |= {"a title": b"".join(titles - {own}), "printed": out.encode()}
    assert [name for name, text in where.items() if any(part in text for part in parts)] == []

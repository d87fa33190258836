"""MLflow's words on a store are passed on, with a command that helps in that case."""

import shlex
import shutil
import sqlite3
import sys
from pathlib import Path

import mlflow
import pytest

from pipeline import ROOT
from pipeline.tracking import connection
from tests.processes import completed

CONNECT = """
import sys
from pipeline.tracking import connection
for uri in sys.argv[1:]:
    try:
        with connection.connected(uri):
            print("connected")
    except connection.TrackerError as error:
        print(error)
"""


def connected(*uris: str) -> list[str]:
    """The result of connecting to each store, in another process: this one may know them."""
    command = [sys.executable, "-c", CONNECT, *uris]
    done = completed(command, cwd=ROOT, check=True)
    return done.stdout.splitlines()


@pytest.mark.slow
def test_tables_of_another_mlflow_are_a_sentence_with_a_command_that_helps(tmp_path: Path) -> None:
    migrations = Path(mlflow.__file__).parent / "store/db_migrations/versions"
    older = min(path.name.partition("_")[0] for path in migrations.glob("[0-9a-f]*_*.py"))
    made = tmp_path / "host dir" / "made.db"
    assert connected(f"sqlite:///{made}") == ["connected"]
    uris = []
    for revision in (older, "ffffffffffff"):
        path = made.with_name(f"{revision}.db")
        shutil.copy(made, path)
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))
        connection.close()
        uris.append(f"sqlite:///{path}")
    assert connected(*uris) == [
        "its tables belong to another MLflow version: "
        f"python -m mlflow db upgrade {shlex.quote(uris[0])} brings them up to date",
        f"its tables belong to another MLflow version: a newer MLflow than {mlflow.__version__} wrote "
        "them; python -m pip install --upgrade mlflow installs it",
    ]


def test_a_password_is_in_no_command() -> None:
    error = RuntimeError(
        "Detected out-of-date database schema (found version 451aebb31d03, but expected 0123456789ab)."
    )
    said = connection._clause(error, "postgresql://me:secret@host/db")
    assert 'db upgrade "$MLFLOW_TRACKING_URI"' in said and "secret" not in said

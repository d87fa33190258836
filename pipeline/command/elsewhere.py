"""Runs a command that was sent to a cluster: ``python -m pipeline.command.elsewhere`` reads an ``Errand`` and
ends as the command does.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from pipeline import UserError
from pipeline.cluster.messages import Errand
from pipeline.cluster.sending import MISTAKE
from pipeline.command import options
from pipeline.command.run import UnsuccessfulError
from pipeline.command.sentences import fail, validated

NO_TRACKER = {"name": "none", "uri": None}
"""Who sent the command publishes what comes of it."""


def main() -> None:
    """Run the command that is on standard input."""
    errand = Errand.model_validate_json(sys.stdin.read())
    # What a row says of its command is what was typed.
    sys.argv = [errand.name, *errand.words]
    schema: Any = getattr(options, f"{errand.name.capitalize()}Config")
    told = errand.options | ({"tracking": NO_TRACKER} if "tracking" in schema.model_fields else {})
    try:
        importlib.import_module(f"pipeline.{errand.name}").run(validated(schema, told))
    except UserError as error:
        fail(str(error), code=MISTAKE)
    except UnsuccessfulError as error:
        fail(str(error), code=1)


if __name__ == "__main__":
    main()

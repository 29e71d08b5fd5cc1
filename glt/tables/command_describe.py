"""The command ``glt describe``.

Exit status: 0 when a description is written, 1 if a table cannot be read or nothing looks like edges, 2 for wrong
usage.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from glt.errors import TableError
from glt.tables.descriptions.text import json_schema, to_toml


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.description = (
        "Guesses a description for 'glt build' from tables in Parquet or CSV: keys and ends of edges by the names and "
        "values of columns, kinds of features by their types. It is a draft to edit: remarks in it say what is "
        "uncertain. Of a configuration of GraphStorm (gconstruct, JSON) it says what is not taken over. "
        "Exit status 0: written; 1: a table cannot be read, or nothing looks like edges; 2: wrong usage."
    )
    parser.add_argument(
        "files", nargs="*", help="files, directories, patterns or URLs of one or more tables; or gconstruct's JSON"
    )
    parser.add_argument(
        "--out", metavar="FILE", help="where to write it, .toml or .json (default: TOML, to standard output)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace a file that is there")
    parser.add_argument(
        "--schema",
        action="store_true",
        help="print the JSON schema of descriptions, which editors complete and check by, and end",
    )


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    """Writes the description and returns the exit status."""
    if arguments.schema:
        print(json.dumps(json_schema(), indent=1))
        return 0
    out = None if arguments.out is None else Path(arguments.out)
    if not arguments.files:
        parser.error("no files: expected files, directories, patterns or URLs of tables")
    if out is not None and out.suffix not in (".toml", ".json"):
        parser.error(f"--out {out}: expected a name with .toml or .json")
    if out is not None and out.exists() and not arguments.overwrite:
        parser.error(f"--out {out} is there already: choose another name, or --overwrite")
    try:
        from glt.tables.guesses.guess import guess

        described, remarks = guess(arguments.files, "." if out is None else out.parent)
        if out is not None and out.suffix == ".json":
            text = json.dumps(described.to_dict(), indent=2, ensure_ascii=False) + "\n"
            for name, texts in remarks.items():
                for each in texts:
                    print(f"{name}: {each}" if name else each, file=sys.stderr)
        else:
            text = to_toml(described, remarks)
        if out is None:
            print(text, end="")
        else:
            out.write_text(text)
    except (TableError, OSError) as error:
        print(f"glt describe: {error}", file=sys.stderr)
        return 1
    except ImportError as error:
        parser.error(str(error))
    if out is not None:
        print(f"written to {out}: edit it; next: glt build {out} --out DIR --dry-run", file=sys.stderr)
    return 0

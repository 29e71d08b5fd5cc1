"""The command ``glt token``: makes the token of a job, and the read token that belongs to it."""

from __future__ import annotations

import argparse

from glt.distributed.wire.credentials import Token

_DESCRIPTION = """\
Writes a new token to FILE, which only you can read then: the write token of a job. Give the file to all its processes
(GLT_TOKEN_FILE, --token-file, token_file=); those without it are refused. With --read, writes the read token of one:
those who have that sample and read, and cannot write tensors or call registered functions.

A token is never shown. A file that exists is not overwritten."""

_EPILOG = """\
examples:
  glt token job.token
  glt token --read job.token readers.token"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description, parser.epilog = _DESCRIPTION, _EPILOG
    parser.add_argument("--read", metavar="TOKEN", help="file with a token, whose read token is written")
    parser.add_argument("file", metavar="FILE", help="file to write")


def run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    try:
        token = Token.new() if arguments.read is None else Token.read(arguments.read).for_reading()
        token.write(arguments.file)
    except FileExistsError:
        parser.error(f"{arguments.file} exists: name another file, or remove it if no job uses it any more")
    except ValueError as error:
        parser.error(str(error).replace("token_file = ", "--read "))
    except OSError as error:
        parser.error(f"{arguments.file} cannot be written: {error.strerror}")
    print(f"{arguments.file}: the {'write' if token.may_write else 'read'} token; only you can read it")
    return 0

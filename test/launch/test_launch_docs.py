"""docs/launch.md says what is so: its commands parse, and its table has every variable."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

from glt.launch import command as command_launch
from glt.launch import copy as command_copy

TEXT = (Path(__file__).parents[2] / "docs" / "launch.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", TEXT, re.S)


def test_commands_parse() -> None:
    found = []
    for language, block in BLOCKS:
        for line in block.replace("\\\n", " ").splitlines() if language == "sh" else ():
            if line.startswith(("glt launch", "glt copy")):
                _, name, *words = shlex.split(line)
                parser = argparse.ArgumentParser(exit_on_error=False)
                {"launch": command_launch, "copy": command_copy}[name].add_arguments(parser)
                parser.parse_args(words)
                found.append(name)
    assert found.count("launch") >= 2 and "copy" in found


def test_the_commands_of_dgls_documents_parse() -> None:
    words = "--workspace ~/graphsage/ --num_clients 2 --part_config data/p.json --ip_config ip_config.txt"
    parser = argparse.ArgumentParser(exit_on_error=False)
    command_launch.add_arguments(parser)
    found = parser.parse_args([*words.split(), "python3 train_dist.py --graph-name p --num-epochs 30"])
    assert (found.num_trainers, found.num_servers, found.part_config) == (2, 1, "data/p.json")
    words = "--ip_config ip_config.txt --workspace ~/w/ --rel_data_path 4part_data --part_config 4part_data/p.json"
    parser = argparse.ArgumentParser(exit_on_error=False)
    command_copy.add_arguments(parser)
    assert parser.parse_args(words.split()).part_config == "4part_data/p.json"


def test_flags_exist() -> None:
    parser = argparse.ArgumentParser()
    command_launch.add_arguments(parser)
    ours = set(parser._option_string_actions)
    parser = argparse.ArgumentParser()
    command_copy.add_arguments(parser)
    ours |= set(parser._option_string_actions) | {"--metrics-port", "--rank", "--help"}
    prose = re.sub(r"```.*?```", "", TEXT, flags=re.S)
    assert set(re.findall(r"--[a-z][a-z_-]+", prose)) <= ours


def test_the_table_has_every_variable() -> None:
    table = TEXT.partition("## The environment of a process")[2]
    assert set(re.findall(r"GLT_[A-Z_]+", table)) == set(command_launch._CONTRACT)
    assert set(re.findall(r"GLT_[A-Z_]+", TEXT)) == set(command_launch._CONTRACT)

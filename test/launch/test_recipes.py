"""Recipes and documents of launches."""

import argparse
import re
import shlex
from pathlib import Path

from glt.launch import command as command_launch
from glt.launch import copy as command_copy

TEXT = (Path(__file__).parents[2] / "docs" / "guides" / "launching.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", TEXT, re.S)


def parser_of(command):
    parser = argparse.ArgumentParser(exit_on_error=False)
    command.add_arguments(parser)
    return parser


def test_commands_parse():
    found = []
    for language, block in BLOCKS:
        for line in block.replace("\\\n", " ").splitlines() if language == "sh" else ():
            if line.startswith(("glt launch", "glt copy")):
                _, name, *words = shlex.split(line)
                parser_of({"launch": command_launch, "copy": command_copy}[name]).parse_args(words)
                found.append(name)
    assert found.count("launch") >= 2 and "copy" in found


def test_the_commands_of_dgls_documents_parse():
    words = "--workspace ~/graphsage/ --num_clients 2 --part_config data/p.json --ip_config ip_config.txt"
    found = parser_of(command_launch).parse_args(
        [*words.split(), "python3 train_dist.py --graph-name p --num-epochs 30"]
    )
    assert (found.num_trainers, found.num_servers, found.part_config) == (2, 1, "data/p.json")
    words = "--ip_config ip_config.txt --workspace ~/w/ --rel_data_path 4part_data --part_config 4part_data/p.json"
    assert parser_of(command_copy).parse_args(words.split()).part_config == "4part_data/p.json"


def test_flags_exist():
    ours = {flag for each in (command_launch, command_copy) for flag in parser_of(each)._option_string_actions}
    ours |= {"--metrics-port", "--rank", "--help"}
    prose = re.sub(r"```.*?```", "", TEXT, flags=re.S)
    assert set(re.findall(r"--[a-z][a-z_-]+", prose)) <= ours


def test_the_table_has_every_variable():
    for text in (TEXT, TEXT.partition("## The environment of a process")[2]):
        of_users = {"GLT_TRANSPORT", "GLT_RPC_IBV"}
        assert set(re.findall(r"GLT_[A-Z_]+", text)) - of_users == command_launch._CONTRACT

"""The documentation site: ``make docs`` builds it into build/docs. Pages are Markdown, those of tutorials/ are run."""

import hashlib
import inspect
import os
import sys
from functools import cached_property
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

import glt

ROOT = Path(__file__).parents[1]
ROOMS = ["glt", *(f"glt.{name}" for name in glt.__all__ if isinstance(getattr(glt, name), ModuleType))]

project, author, copyright = "glt", "the glt authors", "the glt authors"
version = release = glt.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinxarg.ext"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"glt {release}"
html_static_path = ["_static"]
html_css_files = ["custom.css"]
html_copy_source = False
html_theme_options = {
    "source_repository": "https://github.com/glt-graph/glt",
    "source_branch": "main",
    "source_directory": "docs/",
}

# References to glt must resolve. Those to others, which no inventory is fetched for, are text, as are types below the
# rooms, which signatures of public names mention.
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!glt\b).*"), ("py:class", r"glt\.(_core|\w+\.\w+)\..+")]

autodoc_default_options = {
    "members": True,
    "inherited-members": True,
    "member-order": "bysource",
    "special-members": "__call__, __getitem__, __setitem__, __iter__, __len__, __next__",
}
autodoc_preserve_defaults = True
maximum_signature_line_length = 80
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_custom_sections = [("Attributes", "params_style")]  # else names of attributes become links, to any of them
autodoc_inherit_docstrings = False
smartquotes = False  # they turn -- of flags into a dash


def digest_of_glt() -> str:
    """What tutorials depend on beside their own text, which the cache looks at by itself."""
    files = sorted(path for path in (ROOT / "glt").rglob("*") if path.suffix in (".py", ".so"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


nb_execution_mode = "cache"
nb_execution_cache_path = str(ROOT / "build" / "docs-runs" / digest_of_glt())
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_execution_show_tb = True
nb_merge_streams = True
# Cells that start `python`, `glt` or `torchrun` mean those of this environment.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def is_foreign(app: Sphinx, what: str, name: str, value: Any, skip: bool, options: Any) -> bool | None:
    """Leaves out what a class inherits from torch, PyG or Python: their documentation has it."""
    if isinstance(value, property):
        value = value.fget
    elif isinstance(value, cached_property):
        value = value.func
    module = getattr(value, "__module__", None)
    is_native = inspect.isroutine(value) or inspect.isdatadescriptor(value)  # of int, for example, or of a NamedTuple
    return True if (is_native if module is None else module.split(".")[0] != "glt") else None


def at_documented_path(app: Sphinx, env: BuildEnvironment, node: pending_xref, text: nodes.Element) -> Any:
    """Resolves a reference to a public name by another of its paths: `glt.distributed.partition_graph`, for example, is
    documented as `glt.partition.partition_graph`."""
    room, _, name = node.get("reftarget", "").rpartition(".")
    if node.get("refdomain") != "py" or room not in ROOMS or not hasattr(import_module(room), name):
        return None
    value, domain = getattr(import_module(room), name), env.get_domain("py")
    for other in ROOMS:
        path = f"{other}.{name}"
        if path in domain.objects and getattr(import_module(other), name, None) is value:
            return domain.resolve_xref(env, node["refdoc"], app.builder, node["reftype"], path, node, text)
    return None


def with_dashes(app: Sphinx, page: nodes.document) -> None:
    """Puts a dash between a parameter and its text, where smartquotes would."""
    for text in list(page.findall(nodes.Text)):
        if text.astext().startswith(" -- "):
            text.parent.replace(text, nodes.Text(" \u2013 " + text.astext()[4:]))


def setup(app: Sphinx) -> None:
    app.connect("autodoc-skip-member", is_foreign)
    app.connect("doctree-read", with_dashes)
    app.connect("missing-reference", at_documented_path)

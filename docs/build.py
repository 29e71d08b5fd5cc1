"""Builds the site and checks its links, without a network: ``python docs/build.py build/docs``.

Sphinx runs the tutorials and takes warnings for errors. Then each link to a page, an anchor, a picture, a style or a
script of the site must lead to one; links to elsewhere are listed, and only their form is checked. Last come the pages.
Exit status 1 if something is wrong.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from sphinx.cmd.build import build_main


class Page(HTMLParser):
    """The anchors of a page, and the places that it names."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is not None and (name == "id" or (name == "name" and tag == "a")):
                self.anchors.add(value)
            elif value is not None and name in ("href", "src"):
                self.links.add(value)


def is_well_formed(link: SplitResult) -> bool:
    """Tells whether a link to elsewhere can be one."""
    if link.scheme == "mailto":
        return re.fullmatch(r"[^@\s]+@[^@\s]+\.\w+", link.path) is not None
    return link.scheme == "https" and re.fullmatch(r"(\w[\w-]*\.)+[a-z]+", link.netloc) is not None


def check(site: Path) -> tuple[dict[Path, Page], set[str], list[str]]:
    """Returns the pages of ``site``, the links to elsewhere, and what is wrong, a line each."""
    pages = {path.resolve(): Page(path) for path in sorted(site.rglob("*.html"))}
    outside: set[str] = set()
    wrong = []
    for path, page in pages.items():
        for text in sorted(page.links):
            link = urlsplit(text)
            if link.scheme == "data":
                continue
            if link.scheme or link.netloc:
                outside.add(text)
                problem = None if is_well_formed(link) else "is no https or mailto link"
            else:
                target = (path.parent / unquote(link.path)).resolve() if link.path else path
                if not target.is_file():
                    problem = "is no file"
                elif link.fragment and target in pages and unquote(link.fragment) not in pages[target].anchors:
                    problem = "has no such anchor"
                else:
                    problem = None
            if problem is not None:
                wrong.append(f"{path.relative_to(site.resolve())}: {text} {problem}")
    return pages, outside, wrong


def main(site: Path) -> int:
    if build_main(["-q", "-W", "--keep-going", "-b", "html", str(Path(__file__).parent), str(site)]) != 0:
        return 1
    pages, outside, wrong = check(site)
    print(f"{len(outside)} links to elsewhere, not followed:", *sorted(outside), sep="\n  ")
    print(f"{len(wrong)} broken links", *wrong, sep="\n  ")
    print(f"{len(pages)} pages in {site}:", *(path.relative_to(site.resolve()) for path in pages), sep="\n  ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

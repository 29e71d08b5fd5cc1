"""The page of an endpoint in headless Chromium: numbers appear, nothing else is asked for, nothing complains."""

import os
import re
from pathlib import Path

import browser
import pytest
from served import finish, working_server

import glt
from glt.distributed.wire.credentials import Token, set_credentials, use_credentials

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(browser.find() is None, reason="needs Chromium (Debian: chromium-headless-shell)"),
]

# Pictures to look at are kept where this names a folder.
PICTURES = os.environ.get("GLT_TEST_PICTURES")

# Contrast by WCAG 2 of the text of all elements that are seen, on the nearest ground.
CONTRASTS = """(() => {
  const parse = (text) => text.match(/[0-9.]+/g).map(Number);
  const light = (rgb) => rgb.slice(0, 3).map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (node) => { for (; node; node = node.parentElement) {
    const rgb = parse(getComputedStyle(node).backgroundColor); if (rgb.length < 4 || rgb[3] > 0) return rgb; } };
  return [...document.body.querySelectorAll("*")].filter((node) => node.checkVisibility() && [...node.childNodes]
    .some((child) => child.nodeType === 3 && child.textContent.trim())).map((node) => {
      const [a, b] = [parse(getComputedStyle(node).color), ground(node)].map(light).sort((x, y) => y - x);
      return [(a + 0.05) / (b + 0.05), node.tagName + " " + node.textContent.trim().slice(0, 40)]; });
})()"""

# Text of the cells of all tables that are seen, by the id of their heading.
CELLS = """Object.fromEntries([...document.querySelectorAll("section")].map((section) => {
  const lines = [...section.querySelectorAll("tbody tr")];
  return [section.querySelector("h2").id, lines.map((line) =>
    [...line.children].filter((cell) => !cell.hidden).map((cell) => cell.textContent))]; }))"""


def seen(page, name):
    if PICTURES:
        page.picture(Path(PICTURES) / f"{name}.png")


def test_it_shows_a_server_at_work_at_every_width_light_and_dark_and_its_end(world, tmp_path):
    with working_server(world(1).path) as (stage, address), browser.Browser(tmp_path) as page:
        page.show(1200, 900, "light")
        page.open(f"http://{address}/")
        page.until("!document.getElementById('numbers').hidden")
        page.until("document.querySelectorAll('#charts svg path[d*=L]').length > 2")
        cells = page.run(CELLS)
        (loader,) = cells["loaders-title"]
        assert "client-0-1" in loader[0] and "client 0 of 'distributed-client'" in loader[-1]
        assert [row[0] for row in cells["stages-title"]] == ["Sampling", "Gathering", "Remote", "Blocked"]
        assert cells["workers-title"][0][0] == "0" and cells["caches-title"][-1][0] == "all, since start"
        first = int(page.run("document.querySelector('#tiles dd').textContent").replace(",", ""))
        page.until(f"parseInt(document.querySelector('#tiles dd').textContent.replaceAll(',', '')) > {first}")
        assert page.run("document.title").startswith("glt: server 0 (partition 0")
        assert page.run("document.querySelectorAll('table').length") == page.run(
            "document.querySelectorAll('table > caption').length"
        )
        for width in (1200, 380):
            for scheme in ("light", "dark"):
                page.show(width, 900, scheme)
                page.until(f"matchMedia('(prefers-color-scheme: {scheme})').matches && innerWidth === {width}")
                assert page.run("document.documentElement.scrollWidth") <= width
                poor = [each for each in page.run(CONTRASTS) if each[0] < 4.5]
                assert not poor, (scheme, poor)
                seen(page, f"server-{width}-{scheme}")
        assert not page.complaints
        assert {url.split("?")[0] for url in page.urls} == {f"http://{address}/", f"http://{address}/stats"}

        finish(stage)
        page.until("!document.getElementById('trouble').hidden")
        assert "does not answer" in page.run("document.getElementById('trouble').textContent")
        assert page.run("getComputedStyle(document.getElementById('numbers')).filter") == "grayscale(1)"
        seen(page, "gone")
        assert all("ERR_CONNECTION" in str(each) for each in page.complaints), page.complaints


class Loader:
    def stats(self):
        counts = dict.fromkeys("num_nodes num_remote_nodes num_cached_nodes num_window_nodes remote_bytes".split(), 7)
        stages = dict.fromkeys(("sampling_s", "gathering_s", "remote_s", "blocked_s", "wait_s"), 0.5)
        return {"num_batches": 3, "cache_hit_ratio": 0.3, "remote_node_ratio": 1.0, **counts, **stages}


def test_it_asks_for_the_token_and_names_are_text(tmp_path):
    token = Token.new()
    token.write(tmp_path / "token")
    before = use_credentials(str(tmp_path / "token"))
    name = "<img src=x onerror=alert(1)><script>document.title='taken'</script>"
    enter = "document.getElementById('token').value = '{}'; document.querySelector('form').requestSubmit()"
    try:
        with glt.distributed.publish_stats({name: Loader()}, auth=True) as opened, browser.Browser(tmp_path) as page:
            page.show(1200, 900, "light")
            page.open(opened.url)
            page.until("!document.getElementById('login').hidden")
            assert page.run("document.getElementById('numbers').hidden")
            seen(page, "login")
            page.run(enter.format(token))
            page.until("document.getElementById('trouble').textContent.includes('not the read token')")
            page.run(enter.format(token.for_reading()))
            page.until("!document.getElementById('numbers').hidden")
            assert page.run("document.getElementById('login').hidden && document.getElementById('trouble').hidden")
            rows = page.run(CELLS)
            assert rows["loaders-title"][0][0] == name and rows["workers-title"] == []
            assert page.run("document.title").startswith("glt: trainer (host")
            assert page.run("document.querySelectorAll('main img').length + localStorage.length") == 0
            seen(page, "trainer")
            assert all("401" in str(each) for each in page.complaints), page.complaints
    finally:
        set_credentials(before)


def test_loaders_in_process_have_no_numbers_of_partitions(tmp_path):
    loader = glt.loader.NeighborLoader(glt.testing.ring_graph().to_dataset(), [2], batch_size=8)
    num_batches, num_nodes = sum(1 for _ in loader), str(loader.stats()["num_nodes"])
    with glt.distributed.publish_stats({"train": loader}) as opened, browser.Browser(tmp_path) as page:
        page.open(opened.url)
        page.until("!document.getElementById('numbers').hidden")
        assert page.run(CELLS)["caches-title"] == [["train", num_nodes], ["all, since start", num_nodes]]
        assert page.run(CELLS)["loaders-title"][0][:2] == ["train", str(num_batches)]
        assert not re.search("NaN|undefined", page.run("document.body.innerText"))


class OnDisk(Loader):
    def stats(self):
        return super().stats() | {"num_disk_rows": 3, "num_hot_rows": 1, "disk_bytes": 1536, "disk_s": 0.4}


def test_what_a_disk_took_is_shown_where_features_are_there(tmp_path):
    with glt.distributed.publish_stats({"disk": OnDisk()}) as opened, browser.Browser(tmp_path) as page:
        page.show(1200, 900, "light")
        page.open(opened.url)
        page.until("!document.getElementById('numbers').hidden")
        told = page.run(CELLS)["caches-title"]
        assert told[1][-3:] == ["25\u202f%", "1.50\u202fKB", "400\u202fms"], told
        seen(page, "disk")
    with glt.distributed.publish_stats({"mapped": Loader()}) as opened, browser.Browser(tmp_path) as page:
        page.open(opened.url)
        page.until("!document.getElementById('numbers').hidden")
        assert len(page.run(CELLS)["caches-title"][1]) == len(told[1]) - 3


def test_an_inline_script_of_another_does_not_run(tmp_path):
    with glt.distributed.publish_stats({}) as opened, browser.Browser(tmp_path) as page:
        page.open(opened.url)
        page.until("!document.getElementById('numbers').hidden")
        page.run(
            "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.bad = 1'}))"
        )
        assert page.run("window.bad === undefined")
        assert page.run("fetch('http://127.0.0.2:1/').then(() => 'went', () => 'refused')") == "refused"
        assert sum("Content Security Policy" in str(each) for each in page.complaints) >= 2, page.complaints

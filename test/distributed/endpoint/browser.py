"""Headless Chromium, driven over a pipe by its DevTools protocol: what a page shows, asks for and complains of."""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def find():
    """The program, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """A browser with one page. Ends with the ``with`` block.

    Attributes:
        urls: That the page asked for.
        complaints: Of its console, of exceptions and of the policy for its content.
    """

    def __init__(self, folder, deadline_s=60.0):
        self.urls, self.complaints = [], []
        self._deadline_s, self._number, self._answers, self._rest = deadline_s, 0, {}, b""
        theirs, self._to = os.pipe()
        self._from, theirs_to = os.pipe()
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        flags += ["--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe"]
        command = f'exec "$@" 3<&{theirs} 4>&{theirs_to}'
        command = ["bash", "-c", command, "bash", find(), *flags, f"--user-data-dir={folder}", "about:blank"]
        with open(os.path.join(folder, "browser.log"), "wb") as log:
            self._process = subprocess.Popen(command, pass_fds=(theirs, theirs_to), stdout=log, stderr=log)
        os.close(theirs)
        os.close(theirs_to)
        (target,) = [each for each in self._ask("Target.getTargets")["targetInfos"] if each["type"] == "page"]
        attach = {"targetId": target["targetId"], "flatten": True}
        self._session = self._ask("Target.attachToTarget", **attach)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        with contextlib.suppress(OSError):
            self._ask("Browser.close")
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def ask(self, method, **given):
        """Calls a method of the page."""
        return self._ask(method, self._session, **given)

    def _ask(self, method, session=None, **given):
        self._number += 1
        number = self._number
        call = {"id": number, "method": method, "params": given} | ({"sessionId": session} if session else {})
        os.write(self._to, json.dumps(call).encode() + b"\0")
        deadline = time.monotonic() + self._deadline_s
        while number not in self._answers:
            self._read(deadline)
        answer = self._answers.pop(number)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def _read(self, deadline):
        assert select.select([self._from], [], [], max(0.0, deadline - time.monotonic()))[0], "the browser is silent"
        more = os.read(self._from, 1 << 20)
        if not more:
            raise BrokenPipeError("the browser has ended")
        *messages, self._rest = (self._rest + more).split(b"\0")
        for message in map(json.loads, messages):
            told = message.get("params", {})
            if "id" in message:
                self._answers[message["id"]] = message
            elif message["method"] == "Network.requestWillBeSent":
                self.urls.append(told["request"]["url"])
            elif message["method"] == "Runtime.exceptionThrown":
                self.complaints.append(told["exceptionDetails"])
            elif message["method"] == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
                self.complaints.append(told["args"])
            elif message["method"] == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
                self.complaints.append(told["entry"])

    def show(self, width, height, scheme):
        """The size of the window in CSS pixels, and ``"light"`` or ``"dark"``."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def open(self, url):
        self.ask("Page.navigate", url=url)
        self.until(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    def run(self, script):
        """The value of an expression of JavaScript; promises are awaited."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, script, seconds=30.0):
        """Waits until the expression is true; returns its value."""
        deadline = time.monotonic() + seconds
        while not (value := self.run(script)):
            assert time.monotonic() < deadline, (script, self.run("document.body.innerText"), self.complaints)
            time.sleep(0.1)
        return value

    def picture(self, path):
        """Writes the whole page to ``path``, as PNG."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        told = self.ask("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        with open(path, "wb") as file:
            file.write(base64.b64decode(told["data"]))

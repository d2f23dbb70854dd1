"""A headless Chromium for the tests of the server's page, driven over its DevTools pipe: messages are JSON texts that a NUL
ends, commands go to file descriptor 3 and answers and events come from 4 (https://chromedevtools.github.io/devtools-protocol/).
Python's standard library is enough."""
import base64
import json
import os
import shutil
import subprocess
import time

WAITS_S = 30


class Browser:
    def __init__(self, profile):
        """profile: a folder that is made. shutil.which("chromium") has to be something."""
        down_read, down_write = os.pipe()
        up_read, up_write = os.pipe()

        def descriptors():  # in the child: as the protocol has them
            read, write = os.dup(down_read), os.dup(up_write)
            os.dup2(read, 3)
            os.dup2(write, 4)

        options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
                   f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
        self.child = subprocess.Popen([shutil.which("chromium"), *options], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                      stderr=subprocess.DEVNULL, close_fds=False, preexec_fn=descriptors)
        os.close(down_read)
        os.close(up_write)
        self.commands, self.answers = down_write, os.fdopen(up_read, "rb", buffering=0)
        self.left, self.number, self.session, self.errors, self.requests = b"", 0, None, [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def message(self):
        while b"\0" not in self.left:
            data = self.answers.read(65536)
            if not data:
                raise EOFError("the browser ended")
            self.left += data
        text, self.left = self.left.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, **parameters):
        """The result of a command. Errors of the page that are reported meanwhile are kept in errors, addresses that it
        asks in requests."""
        self.number += 1
        command = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            command["sessionId"] = self.session
        os.write(self.commands, json.dumps(command).encode() + b"\0")
        while True:
            message = self.message()
            if message.get("method") == "Runtime.exceptionThrown":
                self.errors.append(message["params"]["exceptionDetails"])
            elif message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
                self.errors.append(message["params"]["entry"])
            elif message.get("method") == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"].split("#")[0])
            elif message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]

    def open(self, address):
        self.call("Page.navigate", url=address)

    def value(self, expression):
        """The value of a JavaScript expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def until(self, expression):
        """The first value that is true, or the last one after WAITS_S seconds."""
        deadline = time.time() + WAITS_S
        while not (value := self.value(expression)) and time.time() < deadline:
            time.sleep(0.05)
        return value

    def type(self, text):
        self.call("Input.insertText", text=text)

    def press(self, key, modifiers=0):
        """One key: Enter, Escape, Tab. modifiers: 8 is Shift."""
        code = {"Enter": 13, "Escape": 27, "Tab": 9}[key]
        event = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **event, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def click(self, element):
        """The middle of an element by its id, as a mouse does it."""
        x, y = self.value(f"(() => {{ const r = document.getElementById('{element}').getBoundingClientRect(); "
                          "return [r.x + r.width / 2, r.y + r.height / 2]; })()")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def look(self, width, height, scheme):
        """The window's size and the colour scheme that its owner prefers: light or dark."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def slow(self, milliseconds):
        """Delays every request by this time."""
        self.call("Network.emulateNetworkConditions", offline=False, latency=milliseconds, downloadThroughput=-1, uploadThroughput=-1)

    def picture(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        self.child.kill()
        self.child.wait()
        os.close(self.commands)
        self.answers.close()

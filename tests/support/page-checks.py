"""The server's page in a headless Chromium: page-checks.py NIBBLE SCRIPT-MODEL ANSWER-FILE PICTURES. The model always gives the
answer of the file. Screenshots go into the folder PICTURES."""
import os
import sys

from browser import Browser
from server import Server, check, finish

nibble, model, answer, pictures = sys.argv[1:]
with open(answer, encoding="utf-8") as file:
    answer = file.read().strip()
LAST = "[...document.querySelectorAll('.turn')].at(-1).textContent"
TURNS = "document.querySelectorAll('.turn').length"
IDLE = "document.getElementById('send').textContent === 'Send'"


def talks(page):
    page.look(1200, 800, "light")
    check("the message has the focus", page.until("document.activeElement.id === 'text'"))
    check("the model is named", page.until("document.getElementById('model').textContent.startsWith('m, ')"))
    check("one model is nothing to choose from", page.value("document.getElementById('choice').getBoundingClientRect().height === 0"))
    check("memory is shown by tier and by owner", page.until("document.querySelectorAll('#tiers dd').length >= 3 && "
          "[...document.querySelectorAll('#owners dt')].some(e => e.textContent === 'weights')"))
    page.type("Why is the sky")
    page.press("Enter", 8)
    page.type("blue?")
    check("Shift+Enter begins a line", page.value("document.getElementById('text').value") == "Why is the sky\nblue?")
    page.press("Enter")
    check("Enter sends, and the answer is shown", page.until(f"{IDLE} && {LAST} === {answer!r}"), page.value(LAST))
    check("speed and first token are shown", page.until("parseFloat(document.getElementById('speed').textContent) > 0 && "
          "parseFloat(document.getElementById('first').textContent) >= 0"), page.value("document.getElementById('speed').textContent"))
    check("the field is empty again and has the focus",
          page.value("document.getElementById('text').value === '' && document.activeElement.id === 'text'"))
    page.picture(os.path.join(pictures, "light.png"))
    page.click("again")
    check("Again gives another answer in the same place", page.until(f"{IDLE} && {TURNS} === 2 && {LAST} === {answer!r}"), page.value(TURNS))


def stops(page):
    page.slow(500)
    page.type("Go on.")
    page.press("Enter")
    page.press("Escape")
    check("Esc stops", page.until(f"{IDLE} && {LAST}.endsWith('stopped')"), page.value(LAST))
    page.slow(0)
    page.value("document.getElementById('max_tokens').value = 3")
    page.type("Once more.")
    page.press("Enter")
    check("a limit on tokens is kept, and said", page.until(f"{IDLE} && {LAST}.includes('cut: ')"), page.value(LAST))
    page.value("document.getElementById('temperature').value = 7")
    page.type("Wrong.")
    page.press("Enter")
    check("an error names the field", page.until(f"{IDLE} && {LAST}.includes('temperature')"), page.value(LAST))
    page.value("document.getElementById('temperature').value = 0.8")
    page.click("fresh")
    check("New forgets the conversation", page.until(f"{TURNS} === 0 && !document.getElementById('empty').hidden"))


def looks(page):
    background = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0)"
    light = page.value(background)
    page.look(1200, 800, "dark")
    page.picture(os.path.join(pictures, "dark.png"))
    check("dark where that is preferred", page.until(f"{background} < 200") and light > 600, (light, page.value(background)))
    page.look(390, 780, "light")
    wide = "document.documentElement.scrollWidth"
    check("nothing is wider than a phone", page.value(wide) <= 390, page.value(wide))
    shown = "getComputedStyle(document.querySelector('aside')).display !== 'none'"
    check("a phone shows the conversation alone", not page.value(shown))
    page.picture(os.path.join(pictures, "phone.png"))
    page.click("more")
    check("and the settings when they are asked for", page.until(shown))
    page.picture(os.path.join(pictures, "phone-settings.png"))
    page.click("back")
    check("and goes back", page.until(f"!({shown})"))


def main():
    server = Server(nibble, model, "-c", "512", "--alias", "m")
    page = Browser(os.path.abspath("browser"))
    page.open(server.address)
    talks(page)
    stops(page)
    looks(page)
    unexpected = [e for e in page.errors if "400" not in str(e)]  # the browser logs the expected refusal
    check("no script failed, and nothing was fetched from elsewhere", not unexpected, unexpected)
    page.close()
    check("SIGTERM ends the server with 0", server.end()[0] == 0)
    finish()


main()

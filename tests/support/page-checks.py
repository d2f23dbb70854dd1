"""The server's page in a headless Chromium: page-checks.py NIBBLE SCRIPT-MODEL PICTURES. The model always gives the answer
of cli_page.sh. Screenshots go into the folder PICTURES."""
import os
import sys

from browser import Browser
from server import Server, check, finish

nibble, model, pictures = sys.argv[1:]
answer = 'The sky is blue, since <b>air</b> scatters short waves most:pythonCopyprint("blue")'
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
    check("a limit on tokens is kept, and said", page.until(f"{IDLE} && {LAST}.includes('cut off: ')"), page.value(LAST))
    page.value("document.getElementById('temperature').value = 7")
    page.type("Wrong.")
    page.press("Enter")
    check("an error names the field", page.until(f"{IDLE} && {LAST}.includes('temperature')"), page.value(LAST))
    page.value("document.getElementById('temperature').value = 0.8")
    page.click("fresh")
    check("New forgets the conversation", page.until(f"{TURNS} === 0 && !document.getElementById('empty').hidden"))


def shows_markdown(page):
    page.type("What?")
    page.press("Enter")
    page.until(f"{IDLE} && {TURNS} === 2")
    tags = "[...document.querySelectorAll('.turn.assistant *')].map(e => e.localName).join(' ')"
    check("Markdown becomes nodes, HTML stays text", page.value(tags) == "p strong code div div span button pre code", page.value(tags))
    page.value("document.querySelector('.code button').focus()")
    page.press("Enter")
    check("the button copies code", page.until("document.querySelector('.code button').textContent === 'Copied'"))
    page.value("document.addEventListener('copy', () => { window.copied = document.activeElement.value; });"
               "Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page.value("document.querySelector('.code button').textContent = 'Copy'")
    page.press("Enter")
    check("also where the browser has no clipboard", page.until("document.querySelector('.code button').textContent === 'Copied' && "
          "window.copied === 'print(\"blue\")' && document.activeElement.localName === 'button'"), page.value("window.copied"))
    page.value("document.getElementById('text').focus()")
    with open(os.path.join(os.path.dirname(__file__), "page-cases.js"), encoding="utf-8") as file:
        wrong = page.value("(() => {" + file.read() + "return wrong_cases(); })()")
    check("all cases of Markdown", wrong == [], wrong)
    refused = "(() => { try { document.createElement('p').innerHTML = '<b>a</b>'; } catch { return true; } return false; })()"
    check("the policy refuses text as HTML", page.value(refused))


def keeps(page, address):
    """Begins with one conversation that has an answer."""
    titles = "[...document.querySelectorAll('#talks li > button')].map(e => e.textContent).join('|')"
    press = "[...document.querySelectorAll('#talks li div button')].find(e => e.textContent === {!r})"
    check("a conversation is in the list under its first words", page.value(titles) == "What?", page.value(titles))
    page.click("fresh")
    check("a new one is empty", page.until(f"{TURNS} === 0"))
    page.type("Second <i>one</i>")
    page.press("Enter")
    page.until(f"{IDLE} && {TURNS} === 2")
    check("and is the first of the list when it has begun", page.value(titles) == "Second <i>one</i>|What?", page.value(titles))
    page.value(press.format("Rename") + ".focus()")
    page.press("Enter")
    page.type("Renamed")
    page.press("Enter")
    check("it is renamed", page.value(titles) == "Renamed|What?", page.value(titles))
    check("and has the focus", page.value("document.activeElement.textContent") == "Renamed")
    page.picture(os.path.join(pictures, "talks.png"))
    page.value("location.reload()")
    check("all are there when the page is loaded again", page.until(f"document.readyState === 'complete' && {titles} === 'Renamed|What?'"))
    check("and the open one with its answer", page.until(f"{TURNS} === 2 && {LAST} === {answer!r}"), page.value(LAST))
    page.value("document.querySelectorAll('#talks li > button')[1].click()")
    check("another one is opened", page.until(f"{TURNS} === 2 && document.querySelector('.turn').textContent === 'What?'"))
    page.slow(300)
    page.type("More?")
    page.press("Enter")
    page.click("fresh")
    page.slow(0)
    check("leaving an answer stops it", page.until(f"{IDLE} && {TURNS} === 0"))
    check("the question is kept where it was asked", page.until("stored_talks().find(t => t.title === 'What?').turns.length === 3 && !talk.turns.length"))
    page.value("document.querySelectorAll('#talks li > button')[0].click()")
    page.value(press.format("Delete") + ".click()")
    check("deleting asks first", page.value(titles).count("|") == 1)
    page.value(press.format("Really delete") + ".click()")
    check("and deletes", page.value(titles) == "Renamed" and page.value("stored_talks().length") == 1, page.value(titles))
    sent = {e for e in page.requests if not e.startswith(("data:", "chrome", "about:"))}
    check("nothing was sent elsewhere", all(e.startswith(address + "/") for e in sent), sent)
    posts = {e for e in sent if e[len(address):] not in ("/", "/memory", "/slots", "/v1/models", "/v1/chat/completions")}
    check("and only questions were sent", not posts, posts)


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
    page.value("(() => { localStorage.clear(); document.getElementById('max_tokens').value = ''; show_talks(); })()")
    shows_markdown(page)
    keeps(page, server.address)
    looks(page)
    expected = ("400", "TrustedHTML")  # the browser logs what was refused on purpose
    unexpected = [e for e in page.errors if not any(text in str(e) for text in expected)]
    check("no script failed, and nothing was fetched from elsewhere", not unexpected, unexpected)
    page.close()
    check("SIGTERM ends the server with 0", server.end()[0] == 0)
    finish()


main()

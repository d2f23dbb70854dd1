"""Prints docs/options.md: every option of every command, as `nibble COMMAND --help` has it.

    python3 tools/options-page.py build/nibble > docs/options.md

A test compares the page with the program (tests/cli_docs.sh)."""
import re
import subprocess
import sys
import textwrap
from collections import Counter

WIDTH = 100
INTRO = """# Options

This page lists every option of the command line. `tools/options-page.py` makes it from `--help`,
and a test compares the two. `nibble COMMAND --help` shows the options of one command with its
examples; the man page (`man nibble`) has all of them, and the flags of llama.cpp that are accepted,
ignored or refused.

An option can be set in the environment, too: `NIBBLE_RAM=2G` is `--ram 2G`. A flag wins. Sizes are
written `512M`, `2G`, `1.5GiB` or, where noted, `auto`."""
SECTIONS = {"General": "Every command", "Model": "The model and where it is computed", "Memory": "Memory",
            "Precision": "Precision", "Text": "Text", "Sampling": "Sampling", "Options": "Options of some commands"}
OPTION = re.compile(r"  (?:(-\w), |    )(--[a-z0-9-]+)(?: (\S+))? +(.*)")
CONTINUED = re.compile(r" *\n {33}(?=\S)")  # help is wrapped; descriptions of options begin in this column


def help_of(nibble, *args):
    return subprocess.run([nibble, *args], check=True, capture_output=True, text=True, env={}).stdout


def read(nibble):
    """{section: {flag: [letter, argument, text, commands]}}"""
    found = {section: {} for section in SECTIONS}
    commands = re.findall(r"^  ([a-z]+) {2,}\S", help_of(nibble, "help"), re.M)
    for command in commands:
        section = None
        for line in CONTINUED.sub(" ", help_of(nibble, command, "--help")).splitlines():
            if line.rstrip(":") in found:
                section = line.rstrip(":")
            option = OPTION.fullmatch(line) if section else None
            if option:
                letter, flag, argument, text = option.groups()
                found[section].setdefault((letter, flag), [argument, text, []])[2].append(command)
    return commands, found


def entry(letter, flag, argument, text, commands):
    shown = f"`{flag} {argument}`" if argument else f"`{flag}`"
    text = re.sub(r"'(nibble [^']+)'|(?<![\w`'-])(--[a-z][a-z-]+(?: [a-z]\b)?)", lambda m: f"`{m[1] or m[2]}`", text)
    text = re.sub(r'(\\(?:xHH|[nt"\\]))', r"`\1`", text)
    line = f"- {f'`{letter}`, ' if letter else ''}{shown}: {text}{f' ({commands})' if commands else ''}"
    return textwrap.fill(line, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def main():
    commands, found = read(sys.argv[1])
    print(INTRO)
    for section, title in SECTIONS.items():
        options = found[section]
        usual = Counter(tuple(o[2]) for o in options.values()).most_common(1)[0][0]
        if section == "Options" or usual == tuple(commands):
            usual = tuple(commands) if usual == tuple(commands) else ()
        print(f"\n## {title}\n")
        if usual and usual != tuple(commands):
            print(textwrap.fill(f"These are options of {', '.join(usual)}, unless others are named.", WIDTH) + "\n")
        for (letter, flag), (argument, text, takes) in options.items():
            print(entry(letter, flag, argument, text, "" if tuple(takes) == usual else ", ".join(takes)))


main()

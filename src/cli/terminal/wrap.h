/* wrap.h - streamed text, written to stdout. At a terminal lines are broken between words, and control
 * characters are shown as U+FFFD; otherwise every byte is written unchanged.
 *
 * A word is shown as it arrives. When it turns out too long for its line, it is erased and written on the
 * next one. Widths are those of the characters (utf8proc). Wide characters, of scripts without spaces, are
 * words of their own, with their punctuation. A word longer than a line is left to the terminal. */
#ifndef NIB_CLI_TERMINAL_WRAP_H
#define NIB_CLI_TERMINAL_WRAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WRAP_WORD_BYTES = 512 }; /* a longer word is broken by the terminal */

typedef struct wrap {
    bool terminal;
    bool fresh;      /* nothing is written yet: leading spaces are left out */
    int columns;     /* width of the terminal at the last piece */
    int column;      /* of the next character; = columns: the line is full */
    int word_column; /* where the current word begins */
    char word[WRAP_WORD_BYTES];
    size_t n_word;
    bool whole;    /* `word` has all of the current word: it can be erased */
    int32_t last;  /* character; 0: at the beginning of a line */
    int32_t joins; /* utf8proc's state for grapheme clusters */
} wrap;

void wrap_init(wrap *w);  /* stdout, at the beginning of a line */
void wrap_reset(wrap *w); /* a new text, at the beginning of a line */
/* Writes complete UTF-8 characters. False: stdout can no longer be written. */
bool wrap_write(wrap *w, const char *text, size_t n_byte);

#endif

/* input.c - lines from stdin, see input.h. */
#include "cli/terminal/input.h"

#include "base/mem.h"
#include "cli/cli.h"
#include "cli/terminal/editor.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

struct input {
    input_options options;
    editor *editor; /* NULL: lines are read without editing */
    char *data;     /* read and not yet returned: data[at..n) */
    size_t at, n, cap;
    bool ended;
    int error; /* errno of a failed read of stdin; 0: none */
};

input *input_open(const input_options *options) {
    input *in = mem_calloc(1, sizeof *in);
    if (!in)
        return NULL;
    in->options = *options;
    if (options->terminal)
        in->editor = editor_open(options->colour, options->remember);
    return in;
}

void input_close(input *in) {
    if (!in)
        return;
    editor_close(in->editor);
    mem_free(in->data);
    mem_free(in);
}

/* Appends more bytes to data. False: a signal. */
static bool fill(input *in) {
    if (in->at > 0) {
        memmove(in->data, in->data + in->at, in->n - in->at);
        in->n -= in->at;
        in->at = 0;
    }
    if (mem_grow((void **)&in->data, &in->cap, in->n + 4096, 1)) {
        in->ended = true; /* out of memory for the line */
        return true;
    }
    if (!cli_wait_input(STDIN_FILENO, -1))
        return !cli_interrupted();
    ssize_t got = read(STDIN_FILENO, in->data + in->n, in->cap - in->n);
    if (got > 0)
        in->n += (size_t)got;
    else if (got == 0 || errno != EINTR)
        in->ended = true;
    if (got < 0 && errno != EINTR && errno != EIO) /* EIO: the terminal is gone */
        in->error = errno;
    return true;
}

static input_result plain_line(input *in, const char **line, size_t *n_byte) {
    size_t seen = 0;
    const char *end = NULL;
    for (;;) {
        size_t there = in->n - in->at;
        end = there > seen ? memchr(in->data + in->at + seen, '\n', there - seen) : NULL;
        if (end || in->ended)
            break;
        seen = there;
        if (!fill(in)) {
            in->at = in->n; /* drops what was typed */
            return INPUT_INTERRUPTED;
        }
    }
    size_t n = end ? (size_t)(end - (in->data + in->at)) : in->n - in->at;
    if (!end && n == 0) {
        in->ended = false; /* at a terminal more may be typed after Ctrl-D */
        errno = in->error;
        return in->error ? INPUT_FAILED : INPUT_END;
    }
    *line = in->data + in->at;
    in->at += n + (end != NULL);
    while (n > 0 && (*line)[n - 1] == '\r')
        n--;
    *n_byte = n;
    return INPUT_LINE;
}

input_result input_line(input *in, const char *prompt, const char **line, size_t *n_byte) {
    fflush(stdout);
    if (in->editor)
        return editor_line(in->editor, prompt, line, n_byte);
    if (in->options.terminal) {
        fprintf(stderr, in->options.colour ? "\033[1;32m%s\033[0m" : "%s", prompt);
        fflush(stderr);
    }
    return plain_line(in, line, n_byte);
}

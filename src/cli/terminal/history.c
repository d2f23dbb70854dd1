/* history.c - the history file, see history.h. */
#include "cli/terminal/history.h"

#include "base/file.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

struct history_file {
    int fd;
};

/* Makes the folder and its missing parents. */
static bool make_folder(char *path) {
    for (char *c = path + 1; *c; c++)
        if (*c == '/') {
            *c = 0;
            bool made = !mkdir(path, 0700) || errno == EEXIST;
            *c = '/';
            if (!made)
                return false;
        }
    return !mkdir(path, 0700) || errno == EEXIST;
}

/* Opens the history only if it is a regular file: a pipe would block. */
static int open_file(void) {
    int fd = -1;
    char *folder = path_state_dir();
    char *path = folder && make_folder(folder) ? path_join(folder, "history") : NULL;
    struct stat info;
    if (path)
        fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0600);
    if (fd >= 0 && (fstat(fd, &info) || !S_ISREG(info.st_mode) || fchmod(fd, 0600))) {
        close(fd);
        fd = -1;
    }
    mem_free(path);
    mem_free(folder);
    return fd;
}

static bool write_all(int fd, const char *data, size_t n_byte) {
    while (n_byte) {
        ssize_t n = write(fd, data, n_byte);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        data += n;
        n_byte -= (size_t)n;
    }
    return true;
}

/* Reads the last HISTORY_BYTES of the file from the beginning of a line, NUL-terminated. */
static char *read_tail(int fd, off_t size, size_t *n_byte) {
    off_t from = size > HISTORY_BYTES ? size - HISTORY_BYTES : 0;
    char *data = mem_alloc((size_t)(size - from) + 1);
    size_t n = 0;
    ssize_t got = 1;
    while (data && got > 0 && (off_t)n < size - from) {
        got = pread(fd, data + n, (size_t)(size - from) - n, from + (off_t)n);
        n += got > 0 ? (size_t)got : 0;
    }
    if (!data)
        return NULL;
    data[n] = 0;
    char *line = from ? memchr(data, '\n', n) : NULL;
    if (line) {
        n -= (size_t)(line + 1 - data);
        memmove(data, line + 1, n + 1);
    }
    *n_byte = n;
    return data;
}

/* Offset of the newest HISTORY_LINES lines. */
static size_t newest(const char *data, size_t n_byte) {
    size_t lines = 0;
    for (size_t i = n_byte; i > 0; i--)
        if (data[i - 1] == '\n' && ++lines > HISTORY_LINES)
            return i;
    return 0;
}

static void replace(char *text, char from, char to) {
    for (; *text; text++)
        if (*text == from)
            *text = to;
}

static void each_line(char *from, size_t n_byte, history_line_fn fn, void *user) {
    char *end = from + n_byte;
    while (from < end) {
        char *stop = memchr(from, '\n', (size_t)(end - from));
        stop = stop ? stop : end; /* the last line may end with the NUL instead of a newline */
        *stop = 0;
        replace(from, '\r', '\n');
        if (*from)
            fn(user, from);
        from = stop + 1;
    }
}

history_file *history_file_open(history_line_fn fn, void *user) {
    history_file *h = mem_calloc(1, sizeof *h);
    struct stat info;
    if (!h || (h->fd = open_file()) < 0) {
        mem_free(h);
        return NULL;
    }
    flock(h->fd, LOCK_EX);
    size_t n_byte = 0;
    char *data = fstat(h->fd, &info) ? NULL : read_tail(h->fd, info.st_size, &n_byte);
    if (data) {
        size_t skip = newest(data, n_byte), n = n_byte - skip;
        if ((off_t)n < info.st_size && ftruncate(h->fd, 0) == 0)
            write_all(h->fd, data + skip, n);
        if (n > 0 && data[n_byte - 1] != '\n')
            write_all(h->fd, "\n", 1);
        flock(h->fd, LOCK_UN);
        each_line(data + skip, n, fn, user);
    } else {
        flock(h->fd, LOCK_UN);
    }
    mem_free(data);
    return h;
}

void history_file_add(history_file *h, const char *line, size_t n_byte) {
    char whole[HISTORY_LINE_BYTES + 1];
    if (!h || n_byte == 0 || n_byte > HISTORY_LINE_BYTES)
        return;
    memcpy(whole, line, n_byte);
    whole[n_byte] = 0;
    replace(whole, '\n', '\r');
    whole[n_byte] = '\n';
    flock(h->fd, LOCK_EX);
    write_all(h->fd, whole, n_byte + 1);
    flock(h->fd, LOCK_UN);
}

void history_file_close(history_file *h) {
    if (!h)
        return;
    close(h->fd);
    mem_free(h);
}

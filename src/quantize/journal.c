/* journal.c - see journal.h. */
#include "quantize/journal.h"

#include "base/file.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ENTRY = sizeof(uint64_t), MAX_LOG = 16 << 20 };

static nib_status write_whole(journal *j, uint64_t value, nib_error *err) {
    ssize_t n;
    errno = ENOSPC;
    do
        n = fault_hit(FAULT_WRITE) ? -1 : write(j->fd, &value, ENTRY);
    while (n < 0 && errno == EINTR);
    if (n == ENTRY)
        return NIB_OK;
    return nib_fail_errno(err, "cannot write", j->path, n < 0 ? errno : ENOSPC);
}

/* Reads the entries of a log with this key; a log with another key counts as empty. */
static nib_status read_entries(journal *j, uint64_t key, nib_error *err) {
    char *text = NULL;
    size_t n_byte = 0;
    uint64_t found;
    if (!path_exists(j->path))
        return NIB_OK;
    NIB_TRY(file_read_all(j->path, MAX_LOG, &text, &n_byte, err));
    nib_status status = NIB_OK;
    if (n_byte >= ENTRY && memcpy(&found, text, ENTRY) && found != key) {
        j->other = true;
    } else if (n_byte >= ENTRY) {
        j->n = n_byte / ENTRY - 1;
        j->sums = mem_array(j->n + 1, ENTRY);
        if (j->sums)
            memcpy(j->sums, text + ENTRY, j->n * ENTRY);
        else
            status = nib_fail_nomem(err, n_byte, "a log");
    }
    mem_free(text);
    return status;
}

nib_status journal_open(journal *j, const char *out, uint64_t key, nib_error *err) {
    const size_t size = strlen(out) + sizeof ".part.log";
    *j = (journal){.fd = -1, .path = mem_alloc(size)};
    if (!j->path)
        return nib_fail_nomem(err, size, "a file name");
    snprintf(j->path, size, "%s.part.log", out);
    NIB_TRY(read_entries(j, key, err));
    j->fd = open(j->path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (j->fd < 0)
        return nib_fail_errno(err, "cannot create", j->path, errno);
    return j->n ? NIB_OK : write_whole(j, key, err);
}

nib_status journal_keep(journal *j, size_t n, nib_error *err) {
    const off_t end = (off_t)((n + 1) * ENTRY);
    if (ftruncate(j->fd, end) || lseek(j->fd, end, SEEK_SET) != end)
        return nib_fail_errno(err, "cannot truncate", j->path, errno);
    return NIB_OK;
}

nib_status journal_add(journal *j, uint64_t sum, nib_error *err) {
    return write_whole(j, sum, err);
}

void journal_close(journal *j, bool finished) {
    struct stat info;
    const bool empty = j->fd >= 0 && !fstat(j->fd, &info) && info.st_size == 0;
    if (j->fd >= 0)
        close(j->fd);
    if (j->path && (finished || empty))
        unlink(j->path);
    mem_free(j->path);
    mem_free(j->sums);
    *j = (journal){.fd = -1};
}

/* batch_output.c - see batch_output.h. */
#include "server/batch_output.h"

#include "base/jsonx.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/seed.h"
#include "base/status.h"
#include "server/line_reader.h"
#include "base/buffer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum {
    HEAD_BYTES = 16 << 10 /* first bytes of a line that are read: more than precedes a body */,
    HASH_DIGITS = 16,
    ID_DIGITS = 24
};
static const char begins[] = "{\"id\":\"batch_req_",
                  then[] = "\",\"custom_id\":", no_response[] = ",\"response\":null,\"error\":",
                  response[] = ",\"response\":{\"status_code\":";

/* ---- the existing lines ---- */

static nib_status not_ours(const batch_output *o, int64_t line, nib_error *err) {
    return nib_fail(err, NIB_E_USAGE,
                    "%s:%lld: expected a line that 'nibble batch' wrote: give another file with -o", o->path,
                    (long long)line);
}

static bool begins_with(const char *text, size_t n, const char *with) {
    return n >= strlen(with) && !memcmp(text, with, strlen(with));
}

/* Cuts the bytes after the last newline off, if they begin as a line of a batch does: no other file is
 * changed. */
static nib_status cut_torn_line(batch_output *o, uint64_t size, nib_error *err) {
    char block[4096];
    uint64_t end = size;
    while (end > 0) {
        const size_t n = (size_t)NUM_MIN(end, sizeof block);
        if (pread(o->fd, block, n, (off_t)(end - n)) != (ssize_t)n)
            return nib_fail_errno(err, "cannot read", o->path, errno);
        const char *newline = memrchr(block, '\n', n);
        if (newline) {
            end -= n - (size_t)(newline + 1 - block);
            break;
        }
        end -= n;
    }
    const size_t n_head = (size_t)NUM_MIN(size - end, strlen(begins));
    if (n_head &&
        (pread(o->fd, block, n_head, (off_t)end) != (ssize_t)n_head || memcmp(block, begins, n_head)))
        return nib_fail(err, NIB_E_USAGE,
                        "%s: expected a last line that 'nibble batch' wrote: give another file with -o",
                        o->path);
    if (end < size && ftruncate(o->fd, (off_t)end))
        return nib_fail_errno(err, "cannot write", o->path, errno);
    o->end = end;
    return lseek(o->fd, (off_t)end, SEEK_SET) < 0 ? nib_fail_errno(err, "cannot write", o->path, errno)
                                                  : NIB_OK;
}

static nib_status open_file(batch_output *o, nib_error *err) {
    struct stat s;
    o->fd = open(o->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600); /* answers are their owner's */
    if (o->fd < 0 && errno != EISDIR)                          /* a pipe or a device may be write-only */
        o->fd = open(o->path, O_WRONLY | O_CLOEXEC);
    if (o->fd < 0 || fstat(o->fd, &s))
        return nib_fail_errno(err, "cannot write", o->path, errno);
    o->regular = S_ISREG(s.st_mode);
    if (!o->regular)
        return NIB_OK;
    if (flock(o->fd, LOCK_EX | LOCK_NB))
        return nib_fail(err, NIB_E_IO, "%s: another process is writing it", o->path);
    return cut_torn_line(o, (uint64_t)s.st_size, err);
}

nib_status batch_output_open(batch_output *o, const char *path, nib_error *err) {
    *o = (batch_output){.path = path, .fd = -1, .write = o->write};
    return strcmp(path, "-") ? open_file(o, err) : NIB_OK;
}

uint64_t batch_output_hash(const char *method, const char *url, const char *body, size_t n_body) {
    uint64_t h = method ? XXH3_64bits(method, strlen(method)) : 0;
    h = url ? XXH3_64bits_withSeed(url, strlen(url), h) : h;
    h = XXH3_64bits_withSeed(body, n_body, h);
    return h ? h : 1;
}

/* The status of a response, at its beginning; 0: there is none. */
static int status_at(const char *text, size_t n) {
    int status = 0;
    for (size_t i = strlen(response); begins_with(text, n, response) && i < n; i++) {
        if (text[i] < '0' || text[i] > '9' || status > 999)
            break;
        status = status * 10 + (text[i] - '0');
    }
    return status;
}

/* Puts the state of a line at its key, from its first bytes. */
static bool read_key(const char *text, size_t n, key_set *keys, bool *added) {
    const size_t at = strlen(begins) + ID_DIGITS;
    json_t *id = NULL, *error = NULL;
    size_t n_read = 0;
    char number[24], hash[HASH_DIGITS + 1] = "";
    if (n < at || !begins_with(text, n, begins) || !begins_with(text + at, n - at, then))
        return false;
    memcpy(hash, text + strlen(begins), HASH_DIGITS);
    const uint64_t asked = strtoull(hash, NULL, 16);
    const size_t value_at = at + strlen(then);
    jsonx_parse_first(text + value_at, n - value_at, &id, &n_read, NULL);
    const size_t rest = value_at + n_read;
    bool good = json_is_string(id);
    if (id && begins_with(text + rest, n - rest, no_response)) {
        const size_t error_at = rest + strlen(no_response);
        jsonx_parse_first(text + error_at, n - error_at, &error, &n_read, NULL);
        const json_t *line = json_object_get(error, "line");
        good = json_is_integer(line);
        snprintf(number, sizeof number, "%lld", (long long)json_integer_value(line));
        *added = good && key_set_put(keys, KEY_LINE, number, strlen(number), asked);
        json_decref(error);
    } else if (good) {
        *added = key_set_put(keys, KEY_ID, json_string_value(id), json_string_length(id),
                             batch_output_state(asked, status_at(text + rest, n - rest)));
    }
    json_decref(id);
    return good;
}

static nib_status read_lines(const batch_output *o, key_set *keys, uint64_t *n_line, nib_error *err) {
    line_reader r = {.fd = o->fd, .max = HEAD_BYTES};
    nib_status status = NIB_OK;
    line_result got;
    const char *text;
    size_t n;
    if (lseek(o->fd, 0, SEEK_SET) < 0)
        return nib_fail_errno(err, "cannot read", o->path, errno);
    while (status == NIB_OK && ((got = line_next(&r, &text, &n)) == LINE_WHOLE || got == LINE_CUT)) {
        bool added = true;
        if (keys && !read_key(text, n, keys, &added))
            status = not_ours(o, r.number, err);
        else if (!added)
            status = nib_fail_nomem(err, key_set_bytes(keys->n), "the ids of lines");
    }
    if (status == NIB_OK && got != LINE_END)
        status = nib_fail_errno(err, "cannot read", o->path, errno);
    if (n_line)
        *n_line = (uint64_t)r.number;
    line_reader_clear(&r);
    if (status == NIB_OK && lseek(o->fd, (off_t)o->end, SEEK_SET) < 0)
        status = nib_fail_errno(err, "cannot write", o->path, errno);
    return status;
}

nib_status batch_output_count(const batch_output *o, uint64_t *n_line, nib_error *err) {
    *n_line = 0;
    return o->regular ? read_lines(o, NULL, n_line, err) : NIB_OK;
}

nib_status batch_output_load(const batch_output *o, key_set *keys, nib_error *err) {
    return o->regular ? read_lines(o, keys, NULL, err) : NIB_OK;
}

/* ---- new lines ---- */

static nib_status put(batch_output *o, const char *data, size_t n, nib_error *err) {
    if (o->fd < 0)
        return o->write && o->write(data, n) ? NIB_OK
                                             : nib_fail(err, NIB_E_IO, "stdout: cannot be written any more");
    size_t done = 0;
    while (done < n) {
        const ssize_t put = write(o->fd, data + done, n - done);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0) {
            const int why = errno;
            if (o->regular && ftruncate(o->fd, (off_t)o->end) == 0)
                lseek(o->fd, (off_t)o->end, SEEK_SET);
            return nib_fail_errno(err, "cannot write", o->path, why);
        }
        done += (size_t)put;
    }
    o->end += n;
    return NIB_OK;
}

static void begin_line(buffer *line, uint64_t hash, const char *custom_id) {
    char id[ID_DIGITS + 1];
    snprintf(id, sizeof id, "%016llx%08llx", (unsigned long long)hash,
             (unsigned long long)(seed_secret() & 0xffffffff));
    buffer_text(line, begins);
    buffer_text(line, id);
    buffer_text(line, then);
    buffer_text(line, custom_id ? custom_id : "null");
}

static nib_status end_line(batch_output *o, buffer *line, nib_error *err) {
    const nib_status status = line->no_memory ? nib_fail_nomem(err, line->n, "a line of the output")
                                              : put(o, line->data, line->n, err);
    buffer_clear(line);
    return status;
}

nib_status batch_output_answer(batch_output *o, uint64_t hash, const char *custom_id, int status,
                               const char *body, size_t n_body, nib_error *err) {
    buffer line = {0};
    char head[128];
    snprintf(head, sizeof head, "%s%d,\"request_id\":\"req_%016llx\",\"body\":", response, status,
             (unsigned long long)seed_secret());
    begin_line(&line, hash, custom_id);
    buffer_text(&line, head);
    buffer_add(&line, body, n_body);
    buffer_text(&line, "},\"error\":null}\n");
    return end_line(o, &line, err);
}

nib_status batch_output_error(batch_output *o, uint64_t hash, const char *custom_id, int64_t number,
                              const char *code, const char *message, nib_error *err) {
    buffer line = {0};
    begin_line(&line, hash, custom_id);
    buffer_text(&line, no_response);
    buffer_json(&line, json_pack("{s:s, s:o, s:I}", "code", code, "message",
                                 jsonx_string(message, strlen(message)), "line", (json_int_t)number));
    buffer_text(&line, "}\n");
    return end_line(o, &line, err);
}

nib_status batch_output_close(batch_output *o, nib_error *err) {
    nib_status status = NIB_OK;
    if (o->fd >= 0 && err && o->regular && fsync(o->fd))
        status = nib_fail_errno(err, "cannot write", o->path, errno);
    if (o->fd >= 0 && close(o->fd) && err && status == NIB_OK)
        status = nib_fail_errno(err, "cannot write", o->path, errno);
    o->fd = -1;
    return status;
}

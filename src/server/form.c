/* form.c - see form.h. */
#include "server/form.h"

#include <string.h>
#include <strings.h>

enum { LINE = 1024 /* bytes of a line that are looked at */ };

/* A part of the form: the name of its field, and where its content is. */
typedef struct part {
    char name[32], filename[256];
    long begin, end;
} part;

/* The value of a parameter of a header: purpose of name="purpose". "": it is not there, or too long. */
static void parameter(const char *line, const char *name, char *out, size_t size) {
    char key[24];
    snprintf(key, sizeof key, " %s=\"", name);
    const char *at = strstr(line, key);
    const char *value = at ? at + strlen(key) : "", *end = strchr(value, '"');
    const size_t n = end ? (size_t)(end - value) : size;
    out[0] = 0;
    if (n >= size)
        return;
    memcpy(out, value, n);
    out[n] = 0;
}

/* Reads the headers of a part, up to its empty line. False: it has none. */
static bool read_headers(FILE *f, part *p) {
    char line[LINE];
    *p = (part){0};
    while (fgets(line, sizeof line, f)) {
        if (!strcmp(line, "\r\n")) {
            p->begin = ftell(f);
            return true;
        }
        if (!strncasecmp(line, "Content-Disposition:", strlen("Content-Disposition:"))) {
            parameter(line, "name", p->name, sizeof p->name);
            parameter(line, "filename", p->filename, sizeof p->filename);
        }
    }
    return false;
}

/* Moves behind the next line that begins with the boundary. *end: what is before it ends before its line
 * break. *last: the form ends there. False: there is none. */
static bool find_boundary(FILE *f, const char *boundary, long *end, bool *last) {
    const size_t n = strlen(boundary);
    char line[LINE];
    bool begins = true, found = false; /* the text begins a line */
    for (long at = ftell(f); !found && fgets(line, sizeof line, f); at = ftell(f)) {
        found = begins && !strncmp(line, boundary, n);
        *end = at >= 2 ? at - 2 : 0;
        *last = found && !strncmp(line + n, "--", 2);
        begins = ftell(f) > at && line[strlen(line) ? strlen(line) - 1 : 0] == '\n';
    }
    return found;
}

/* Reads a short value. */
static void read_value(FILE *f, const part *p, char *out, size_t size) {
    const long back = ftell(f), n = p->end - p->begin;
    out[0] = 0;
    if (n <= 0 || (size_t)n >= size || fseek(f, p->begin, SEEK_SET))
        return;
    out[fread(out, 1, (size_t)n, f)] = 0;
    (void)fseek(f, back, SEEK_SET);
}

bool form_read(FILE *f, const char *boundary, form *out) {
    long end = 0;
    bool last = false;
    *out = (form){0};
    rewind(f);
    bool found = find_boundary(f, boundary, &end, &last);
    for (part p; found && !last && read_headers(f, &p);) {
        found = find_boundary(f, boundary, &p.end, &last);
        if (found && !strcmp(p.name, "purpose"))
            read_value(f, &p, out->purpose, sizeof out->purpose);
        if (!found || strcmp(p.name, "file") != 0 || p.end < p.begin)
            continue;
        out->begin = p.begin;
        out->end = p.end;
        memcpy(out->filename, p.filename, sizeof out->filename);
    }
    return out->end > 0;
}

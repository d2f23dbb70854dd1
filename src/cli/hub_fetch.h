/* hub_fetch.h - downloads one file of the hub: it appears under its name only whole and with the hub's
 * checksum. A partial download stays in a hidden file and is resumed the next time, also after a kill. */
#ifndef NIB_CLI_HUB_FETCH_H
#define NIB_CLI_HUB_FETCH_H

#include "cli/http.h"
#include "hub/names.h"

typedef struct hub_fetch {
    http *http;
    const char *url;  /* of the content */
    const char *path; /* where it goes; the folder is there */
    const hub_file *file;
    int64_t retries; /* how often a request is made again when nothing more came */
    /* The file has `done` bytes, of which `fetched` came now; false: stop. */
    bool (*progress)(void *user, const hub_file *named, uint64_t done, uint64_t fetched);
    void (*note)(void *user,
                 const char *line); /* what is worth a line: a file that is gone on with, a retry */
    void *user;
} hub_fetch;

/* NIB_E_IO: no network, a server that fails, a full disk, or another file than the hub names;
 * NIB_E_CANCELLED. */
nib_status hub_fetch_file(const hub_fetch *f, nib_error *err);
/* Bytes of the file that are there from the last time. */
uint64_t hub_fetch_there(const hub_file *named, const char *path);

#endif

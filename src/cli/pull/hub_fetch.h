/* hub_fetch.h - downloads one file of the hub: it appears under its name only whole and with the hub's
 * checksum. A partial download stays in a hidden file and is resumed the next time, also after a kill. */
#ifndef NIB_CLI_PULL_HUB_FETCH_H
#define NIB_CLI_PULL_HUB_FETCH_H

#include "cli/pull/http.h"
#include "hub/names.h"

typedef struct hub_fetch {
    http *http;
    const char *url;  /* of the content */
    const char *path; /* where to store it; the folder exists */
    const hub_file *file;
    int64_t retries; /* maximum number of consecutive retries without progress */
    /* The file has `done` bytes, `fetched` of them from this run. Return false to stop. */
    bool (*progress)(void *user, const hub_file *named, uint64_t done, uint64_t fetched);
    void (*note)(void *user, const char *line); /* events worth a line: a resumed file, a retry */
    void *user;
} hub_fetch;

/* Blocks until the file is downloaded. NIB_E_IO: no network, a server error, a full disk, or not the file
 * that the hub lists; NIB_E_CANCELLED: interrupted. */
nib_status hub_fetch_file(const hub_fetch *f, nib_error *err);
/* Bytes of the partial file from earlier runs. */
uint64_t hub_fetch_there(const hub_file *named, const char *path);

#endif

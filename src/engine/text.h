/* text.h - the tokenizer of an engine: built at once, or on another thread while weights are read. */
#ifndef NIB_ENGINE_TEXT_H
#define NIB_ENGINE_TEXT_H

#include "base/log.h"
#include "formats/container.h"
#include "text/memory_estimate.h"
#include "text/tokenizer.h"
#include "tiers/ledger.h"

typedef struct engine_text {
    container *from;      /* whose vocabulary */
    tokenizer *tokenizer; /* NULL: the checkpoint has none */
    bool is_open;         /* so that tokenizer is what it will be */
    tokenizer_need need;  /* before it is open, if only headers were read: its predicted memory */
} engine_text;

/* Makes and charges the tokenizer, and frees the vocabulary's strings. */
nib_status text_open(engine_text *t, ledger *l, const logger *log, nib_error *err);

/* The same on another thread: text_open_async is a pager_options.side_task whose user is a text_loader. Its
 * log lines are kept until text_log, which the engine's own thread calls in any case. */
enum { TEXT_LINES = 4 };
typedef struct text_loader {
    engine_text *of;
    ledger *ledger;
    const logger *log;
    char *lines[TEXT_LINES];
    int n;
} text_loader;
nib_status text_open_async(void *maker, nib_error *err);
void text_log(text_loader *maker);

#endif

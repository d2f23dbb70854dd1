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
    tokenizer_need need;  /* while it is not, and headers are all that was read: what it will take */
} engine_text;

/* Makes and charges the tokenizer, and gives the vocabulary's strings back. */
nib_status text_open(engine_text *t, ledger *l, const logger *log, nib_error *err);

/* The same on another thread: text_open_async is pager_options.beside with a text_loader for its user. What
 * it has to say is kept until text_log, which the engine's own thread calls in any case. */
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

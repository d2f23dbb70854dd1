/* text.h - the tokenizer of an engine: built at once, or on another thread while weights are read. */
#ifndef NIB_ENGINE_TEXT_H
#define NIB_ENGINE_TEXT_H

#include "base/log.h"
#include "formats/container.h"
#include "tokenizer/memory_estimate.h"
#include "tokenizer/tokenizer.h"
#include "memory/ledger.h"

typedef struct engine_text {
    container *from;      /* holds the vocabulary; borrowed */
    tokenizer *tokenizer; /* NULL: the checkpoint has none */
    bool is_open;         /* `tokenizer` is final */
    tokenizer_need need;  /* predicted memory, while it is not open and only headers were read */
} engine_text;

/* Builds and charges the tokenizer, and frees the vocabulary's strings. */
nib_status text_open(engine_text *t, ledger *l, const logger *log, nib_error *err);

/* The same on another thread: text_open_async is a pager_options.side_task whose user is a text_loader. Its
 * log lines are stored until the engine's own thread calls text_log, which it does in any case. */
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

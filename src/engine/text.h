/* text.h - the tokenizer of an engine: made at once, or beside the reading of the weights. */
#ifndef NIB_ENGINE_TEXT_H
#define NIB_ENGINE_TEXT_H

#include "engine/state.h"

/* Makes and charges e->tokenizer (NULL: the checkpoint has none), and gives the vocabulary's strings back. */
nib_status engine_open_text(nib_engine *e, nib_error *err);

/* The same on another thread: engine_text_beside is pager_options.beside with an engine_text for its user.
 * What it has to say is kept until engine_text_tell, which the engine's own thread calls in any case. */
enum { ENGINE_TEXT_LINES = 4 };
typedef struct engine_text {
    nib_engine *e;
    char *lines[ENGINE_TEXT_LINES];
    int n;
} engine_text;
nib_status engine_text_beside(void *text, nib_error *err);
void engine_text_tell(engine_text *text);

#endif

/* help.c - the help texts, made from the tables. */
#include "cli/options/options.h"

#include <string.h>

void cli_print_overview(FILE *out) {
    fprintf(out, "nibble runs large language models inside a memory budget.\n\n"
                 "usage: nibble COMMAND MODEL [options]\n\n");
    for (const cli_command *const *c = cli_registry; *c; c++)
        fprintf(out, "  %-10s %s\n", (*c)->name, (*c)->summary);
    fprintf(out,
            "\nMODEL is a .gguf file, a folder with config.json and *.safetensors, or a name from 'nibble "
            "models'.\n"
            "'nibble COMMAND --help' explains one command; 'nibble --version' prints the version.\n\n"
            "  nibble run smollm2 \"Why is the sky blue?\"\n"
            "  nibble run model.gguf \"Why is the sky blue?\" --ram 2G     (never uses more than 2 GiB)\n"
            "  nibble chat smollm2\n");
}

enum { HELP_COLUMN = 33, HELP_COLUMNS = 100 };

/* Prints text from HELP_COLUMN to HELP_COLUMNS; the cursor is at HELP_COLUMN. */
static void print_words(const char *text, FILE *out) {
    int at = HELP_COLUMN;
    for (text += strspn(text, " "); *text; text += strspn(text, " ")) {
        const int n = (int)strcspn(text, " "), blank = at > HELP_COLUMN;
        if (blank && at + blank + n > HELP_COLUMNS) {
            fprintf(out, "\n%*s", HELP_COLUMN, "");
            at = HELP_COLUMN;
        } else if (blank) {
            fputc(' ', out);
            at++;
        }
        fprintf(out, "%.*s", n, text);
        text += n;
        at += n;
    }
    fputc('\n', out);
}

static void print_option(const cli_option *o, FILE *out) {
    char flag[64], left[96], letter[8] = "    ", fallback[48], text[1024];
    cli_option_flag(o, flag, sizeof flag);
    cli_option_default(o, fallback, sizeof fallback);
    if (o->letter)
        snprintf(letter, sizeof letter, "-%c, ", o->letter);
    snprintf(left, sizeof left, "%s%s%s%s", letter, flag, o->arg ? " " : "", o->arg ? o->arg : "");
    snprintf(text, sizeof text, "%s%s", o->help, fallback);
    const int n = fprintf(out, "  %s", left);
    fprintf(out, "%s%*s", n < HELP_COLUMN ? "" : "\n", n < HELP_COLUMN ? HELP_COLUMN - n : HELP_COLUMN, "");
    print_words(text, out);
}

void cli_print_help(const cli_command *command, FILE *out) {
    fprintf(out, "%s\n\nusage: nibble %s %s\n\n%s%s", command->summary, command->name, command->usage,
            command->details ? command->details : "", command->details ? "\n" : "");
    static const struct {
        unsigned group;
        const char *title;
    } sections[] = {{~(unsigned)(CLI_COMMON | CLI_MODEL | CLI_MEMORY | CLI_TARGETS | CLI_PLANNED |
                                 CLI_PROMPT | CLI_RUN | CLI_TURN | CLI_SAMPLING),
                     NULL},
                    {CLI_PROMPT | CLI_RUN | CLI_TURN, "Text"},
                    {CLI_SAMPLING, "Sampling"},
                    {CLI_MODEL, "Model"},
                    {CLI_MEMORY, "Memory"},
                    {CLI_TARGETS | CLI_PLANNED, "Precision"},
                    {CLI_COMMON, "General"}};
    unsigned wanted = command->groups | CLI_COMMON, shown = 0;
    for (size_t s = 0; s < sizeof sections / sizeof sections[0]; s++) {
        bool titled = false;
        for (size_t i = 0; i < cli_n_option; i++) {
            const cli_option *o = &cli_options[i];
            if (!(o->groups & wanted & sections[s].group) || (o->groups & shown))
                continue;
            if (!titled)
                fprintf(out, "%s%s:\n", sections[s].title ? sections[s].title : "Options", "");
            titled = true;
            print_option(o, out);
        }
        if (titled)
            fputc('\n', out);
        shown |= wanted & sections[s].group;
    }
    fprintf(out, "Every option can be set in the environment: NIBBLE_RAM=2G is --ram 2G; a flag wins.\n");
}

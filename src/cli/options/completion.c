/* completion.c - completions for bash and zsh from the tables of commands and options. The name of an
 * option's argument determines what is offered for its value: words separated by |, FILE, DIR or MODEL;
 * nothing for others. Names of models come from 'nibble models list -q' and are never expanded by the shell,
 * since a file may have any name. */
#include "cli/options/document.h"
#include "cli/options/compat.h"
#include "cli/options/options.h"

#include <string.h>

typedef enum offer { OFFER_WORDS, OFFER_FILES, OFFER_FOLDERS, OFFER_MODELS, OFFER_NOTHING } offer;

static offer offered(const cli_option *o) {
    return strchr(o->arg, '|')        ? OFFER_WORDS
           : !strcmp(o->arg, "FILE")  ? OFFER_FILES
           : !strcmp(o->arg, "DIR")   ? OFFER_FOLDERS
           : !strcmp(o->arg, "MODEL") ? OFFER_MODELS
                                      : OFFER_NOTHING;
}

/* "f16|f32" as "f16 f32" */
static void put_words(const char *words, FILE *out) {
    for (const char *c = words; *c; c++)
        fputc(*c == '|' ? ' ' : *c, out);
}

static void put_flags(const cli_command *command, FILE *out) {
    char flag[64];
    for (size_t i = 0; i < cli_n_option; i++)
        if (cli_command_takes(command, &cli_options[i])) {
            cli_option_flag(&cli_options[i], flag, sizeof flag);
            fprintf(out, " %s", flag);
        }
}

static void put_commands(FILE *out) {
    for (const cli_command *const *c = cli_registry; *c; c++)
        fprintf(out, " %s", (*c)->name);
}

/* ---- bash ---- */

/* Writes "-f|--file|" for the options that offer this. Options that share a letter offer the same. */
static void put_pattern(offer wanted, FILE *out) {
    char flag[64];
    for (size_t i = 0; i < cli_n_option; i++) {
        const cli_option *o = &cli_options[i];
        if (!o->arg || offered(o) != wanted)
            continue;
        cli_option_flag(o, flag, sizeof flag);
        if (o->letter)
            fprintf(out, "-%c|", o->letter);
        fprintf(out, "%s|", flag);
    }
    fputs("'')", out);
}

static void put_word_cases(FILE *out) {
    char flag[64];
    for (size_t i = 0; i < cli_n_option; i++) {
        const cli_option *o = &cli_options[i];
        if (!o->arg || offered(o) != OFFER_WORDS)
            continue;
        cli_option_flag(o, flag, sizeof flag);
        fprintf(out, "    %s)\n        _nibble_offer ", flag);
        put_words(o->arg, out);
        fputs("\n        compopt +o default\n        return\n        ;;\n", out);
    }
}

static void put_command_cases(FILE *out) {
    for (const cli_command *const *c = cli_registry; *c; c++) {
        fprintf(out, "    %s)\n        flags='", (*c)->name);
        put_flags(*c, out);
        fprintf(out, "'\n        first='%s'\n        ;;\n",
                (*c)->words                ? (*c)->words
                : (*c)->groups & CLI_MODEL ? "MODEL"
                                           : "");
    }
}

static const char bash_begin[] =
    "# bash completion for nibble, made by nibble --completion bash\n"
    "_nibble_offer() { # those of the words that go on from $cur\n"
    "    local word\n"
    "    for word; do\n"
    "        [[ $word == \"$cur\"* ]] && COMPREPLY+=(\"$word\")\n"
    "    done\n"
    "}\n"
    "_nibble_lines() { # the same for the lines of stdin, which are names of files\n"
    "    local -a lines\n"
    "    mapfile -t lines\n"
    "    _nibble_offer \"${lines[@]}\"\n"
    "    compopt -o filenames\n"
    "}\n"
    "_nibble_models() {\n"
    "    _nibble_lines < <(\"$nibble\" models list -q 2>/dev/null)\n"
    "}\n"
    "# Words before this one that are neither flags nor their values.\n"
    "_nibble_place() {\n"
    "    local i\n"
    "    place=0\n"
    "    for ((i = 2; i < COMP_CWORD; i++)); do\n"
    "        case ${COMP_WORDS[i]} in\n"
    "        =) ((i++)) ;;\n"
    "        -*) [[ $valued == *\" ${COMP_WORDS[i]} \"* && ${COMP_WORDS[i + 1]} != = ]] && ((i++)) ;;\n"
    "        *) ((place++)) ;;\n"
    "        esac\n"
    "    done\n"
    "}\n"
    "_nibble() {\n"
    "    local nibble=$1 cur=${2//\\\\/} before=${COMP_WORDS[COMP_CWORD - 1]} flags first place\n"
    "    if [[ $COMP_CWORD -gt 2 && $before == = ]]; then\n"
    "        before=${COMP_WORDS[COMP_CWORD - 2]}\n"
    "    elif [[ ${COMP_WORDS[COMP_CWORD]} == = ]]; then\n"
    "        cur=\n"
    "    fi\n";

static const char bash_end[] = "    _nibble_place\n"
                               "    if [[ $cur == -* ]]; then\n"
                               "        _nibble_offer $flags\n"
                               "        compopt +o default\n"
                               "    elif [[ ${COMP_WORDS[1]} == models && $place == 1 ]]; then\n"
                               "        _nibble_models\n"
                               "        compopt +o default\n"
                               "    elif [[ $place == 0 && $first == MODEL ]]; then\n"
                               "        _nibble_models\n"
                               "        _nibble_lines < <(compgen -f -- \"$cur\")\n"
                               "    elif [[ $place == 0 && -n $first ]]; then\n"
                               "        _nibble_offer $first\n"
                               "        compopt +o default\n"
                               "    fi\n"
                               "}\n"
                               "complete -o default -F _nibble nibble\n";

static void print_bash(FILE *out) {
    fputs(bash_begin, out);
    fputs("    local valued=' ", out);
    for (size_t i = 0; i < cli_n_option; i++) {
        char flag[64];
        cli_option_flag(&cli_options[i], flag, sizeof flag);
        if (cli_options[i].arg && cli_options[i].letter)
            fprintf(out, "-%c ", cli_options[i].letter);
        if (cli_options[i].arg)
            fprintf(out, "%s ", flag);
    }
    fputs("'\n    if [[ $COMP_CWORD == 1 || ($COMP_CWORD == 2 && $before == help) ]]; then\n        "
          "_nibble_offer",
          out);
    put_commands(out);
    fputs(" help --help --version\n        compopt +o default\n        return\n    fi\n    case $before in\n "
          "   ",
          out);
    put_pattern(OFFER_FILES, out);
    fputs(" return ;; # readline's own\n    ", out);
    put_pattern(OFFER_FOLDERS, out);
    fputs("\n        compopt +o default -o dirnames\n        return\n        ;;\n    ", out);
    put_pattern(OFFER_MODELS, out);
    fputs("\n        _nibble_models\n        _nibble_lines < <(compgen -f -- \"$cur\")\n        return\n     "
          "   ;;\n    ",
          out);
    put_pattern(OFFER_NOTHING, out);
    fputs("\n        compopt +o default\n        return\n        ;;\n", out);
    put_word_cases(out);
    fputs("    esac\n    case ${COMP_WORDS[1]} in\n", out);
    put_command_cases(out);
    fputs("    esac\n", out);
    fputs(bash_end, out);
}

/* ---- zsh ---- */

/* Text within '...' and, in a specification, within [...]. */
static void put_quoted(const char *text, FILE *out) {
    for (const char *c = text; *c; c++)
        switch (*c) {
        case '\'': fputs("'\\''", out); break;
        case '[':
        case ']':
        case ':':
        case '\\': fprintf(out, "\\%c", *c); break;
        default: fputc(*c, out);
        }
}

static void zsh_option(const cli_option *o, FILE *out) {
    static const char *const actions[] = {[OFFER_FILES] = "_files",
                                          [OFFER_FOLDERS] = "_files -/",
                                          [OFFER_MODELS] = "_nibble_models",
                                          [OFFER_NOTHING] = " "};
    char flag[64];
    cli_option_flag(o, flag, sizeof flag);
    const char *equals = o->arg ? "=" : "", *again = o->kind == OPTION_LIST ? "*" : "";
    if (o->letter)
        fprintf(out, "            '(-%c %s)'{-%c%s,%s%s}'[", o->letter, flag, o->letter, o->arg ? "+" : "",
                flag, equals);
    else
        fprintf(out, "            '%s%s%s[", again, flag, equals);
    put_quoted(o->help, out);
    fputc(']', out);
    if (o->arg) {
        fputc(':', out);
        put_quoted(o->arg, out);
        fputc(':', out);
        if (offered(o) == OFFER_WORDS) {
            fputc('(', out);
            put_words(o->arg, out);
            fputc(')', out);
        } else {
            fputs(actions[offered(o)], out);
        }
    }
    fputs("'\n", out);
}

static void zsh_command(const cli_command *command, FILE *out) {
    fprintf(out, "    %s)\n        specs=(\n", command->name);
    for (size_t i = 0; i < cli_n_option; i++)
        if (cli_command_takes(command, &cli_options[i]))
            zsh_option(&cli_options[i], out);
    if (command->words)
        fprintf(out, "            '1:word:(%s)'\n", command->words);
    else if (command->groups & CLI_MODEL)
        fputs("            '1:model:_nibble_models'\n", out);
    if (!strcmp(command->name, "models"))
        fputs("            '2:model:_nibble_kept'\n", out);
    fputs("            '*:file:_files'\n        )\n        ;;\n", out);
}

static void print_zsh(FILE *out) {
    fputs("#compdef nibble\n"
          "# zsh completion for nibble, made by nibble --completion zsh\n"
          "_nibble_kept() {\n"
          "    local -a names\n"
          "    names=(${(f)\"$($nibble models list -q 2>/dev/null)\"})\n"
          "    compadd -f -a names\n"
          "}\n"
          "_nibble_models() {\n"
          "    _alternative 'kept:model:_nibble_kept' 'files:file:_files'\n"
          "}\n"
          "_nibble() {\n"
          "    local nibble=$words[1]\n"
          "    local -a commands specs\n"
          "    commands=(\n",
          out);
    for (const cli_command *const *c = cli_registry; *c; c++) {
        fprintf(out, "        '%s:", (*c)->name);
        put_quoted((*c)->summary, out);
        fputs("'\n", out);
    }
    fputs("        'help:explain a command'\n    )\n"
          "    if (( CURRENT == 2 )) || [[ CURRENT -eq 3 && $words[2] == help ]]; then\n"
          "        _describe command commands\n        return\n    fi\n"
          "    shift words\n    (( CURRENT-- ))\n"
          "    case $words[1] in\n",
          out);
    for (const cli_command *const *c = cli_registry; *c; c++)
        zsh_command(*c, out);
    fputs("    esac\n    _arguments $specs\n}\n_nibble \"$@\"\n", out);
}

bool cli_print_completion(const char *shell, FILE *out) {
    if (!strcmp(shell, "bash"))
        print_bash(out);
    else if (!strcmp(shell, "zsh"))
        print_zsh(out);
    else
        return false;
    return true;
}

# nibble's one build file. make help lists the targets.
# Sources are found, not listed: a new architecture, kernel folder, sub-command or test is a new file.

BUILD   ?= build
PREFIX  ?= /usr/local
CC      ?= cc
OPT     ?= -O3
WERROR  ?=
SAN     ?=

PKGS    := jansson libpcre2-8 libutf8proc libxxhash
CPPFLAGS += -D_GNU_SOURCE -Iinclude -Isrc -I$(BUILD)/gen $(shell pkg-config --cflags $(PKGS))
CFLAGS  += -std=c11 -g $(OPT) -Wall -Wextra -Wshadow $(WERROR) -fvisibility=hidden -ffp-contract=off $(SAN)
LDLIBS  += $(shell pkg-config --libs $(PKGS)) -lm -lpthread
LDFLAGS += $(SAN)

# The instruction set belongs to a folder, so no body needs an #ifdef and one binary serves every CPU.
ISA_avx2   := -mavx2 -mfma -mf16c
ISA_avx512 := -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mprefer-vector-width=512

LIB_SRC := $(filter-out src/cli/%,$(sort $(shell find src -name '*.c')))
CLI_SRC := $(sort $(wildcard src/cli/*.c))
LIB_OBJ := $(LIB_SRC:%.c=$(BUILD)/%.o) $(BUILD)/gen/registry.o
CLI_OBJ := $(CLI_SRC:%.c=$(BUILD)/%.o) $(BUILD)/gen/registry_cli.o
TESTS   := $(patsubst tests/%.c,$(BUILD)/tests/%,$(sort $(wildcard tests/test_*.c)))
TEST_SUPPORT := $(patsubst %.c,$(BUILD)/%.o,$(sort $(wildcard tests/support/*.c)))

all: $(BUILD)/nibble $(BUILD)/libnibble.a

$(BUILD)/nibble: $(CLI_OBJ) $(BUILD)/libnibble.a
	$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(BUILD)/libnibble.a: $(LIB_OBJ)
	rm -f $@ && $(AR) rcs $@ $^

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(ISA_$(notdir $(patsubst %/,%,$(dir $<)))) -MMD -MP -c -o $@ $<

# Open lists: every src/arch/NAME.c defines `const arch_desc arch_NAME`, every src/cli/cmd_NAME.c a
# `const cli_command cmd_NAME`, every src/kernels/cpu/NAME/ a `const kernel_isa kernels_NAME`. The tables are
# written at each run and replaced only when they change, so that removed files are noticed too.
$(BUILD)/gen/registry.c $(BUILD)/gen/registry_cli.c: FORCE
	@mkdir -p $(@D)
	@sh tools/registry.sh $(if $(findstring _cli,$@),cli,lib) > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@
$(BUILD)/gen/%.o: $(BUILD)/gen/%.c
	$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<
FORCE:

$(BUILD)/tests/%: $(BUILD)/tests/%.o $(TEST_SUPPORT) $(BUILD)/libnibble.a
	$(CC) $(LDFLAGS) -o $@ $^ -lcmocka $(LDLIBS)

tests: $(TESTS)

test: all tests
	sh tools/run-tests.sh $(BUILD)

clean:
	rm -rf $(BUILD)

.PHONY: all tests test clean FORCE
.SECONDARY:
-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)

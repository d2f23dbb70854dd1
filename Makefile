# nibble's one build file. `make help` lists the targets.
# Sources are found, not listed: a new architecture, kernel folder, sub-command or test is a new file.

# As many jobs as there are processors, unless -j says otherwise.
ifeq ($(MAKELEVEL)$(filter -j%,$(MAKEFLAGS)),0)
MAKEFLAGS += -j$(shell nproc)
endif

BUILD   ?= build
PREFIX  ?= /usr/local
DESTDIR ?=
CC      ?= cc
OPT     ?= -O3
# Optimisation for modules that parse and report: no figure of docs/ depends on their speed, and they compile in three
# quarters of the time.
PLAIN_OPT ?= $(if $(filter -O3,$(OPT)),-O2,$(OPT))
TEST_OPT ?= -O0
WERROR  ?=
SAN     ?=
# Debug information: all of it, or line numbers only (-g1), which are enough for sanitized builds and compile faster.
DEBUG   ?= $(if $(SAN),-g1,-g)
OBJCOPY ?= objcopy
STRIP   ?= strip
CLANG   ?= clang
CLANG_FORMAT ?= clang-format

VERSION := $(shell sed -n 's/^.define NIB_VERSION "\(.*\)"/\1/p' include/nib.h)
PKGS    := jansson nettle libpcre2-8 libutf8proc libxxhash liburing
# Libraries that only the command needs, not the library.
CLI_PKGS := libedit
# Of these the command uses only the headers: it loads the libraries when it fetches something, or serves.
CLI_HEADERS := libcurl
SERVER_HEADERS := libmicrohttpd
CPPFLAGS += -D_GNU_SOURCE -Iinclude -Isrc $(shell pkg-config --cflags $(PKGS))
CFLAGS  += -std=c11 -pipe $(DEBUG) $(OPT) -fPIC -Wall -Wextra -Wshadow $(WERROR) -fvisibility=$(if $(SAN),default,hidden) -ffp-contract=off $(SAN)
LDLIBS  += $(shell pkg-config --libs $(PKGS)) -lm -lpthread
LDFLAGS += $(SAN)

$(BUILD)/src/cli/%.o: CPPFLAGS += $(shell pkg-config --cflags $(CLI_PKGS) $(CLI_HEADERS))
$(BUILD)/src/server/%.o: CPPFLAGS += $(shell pkg-config --cflags $(SERVER_HEADERS))

# The instruction set belongs to a folder, so no body needs an #ifdef and one binary serves every CPU. The folder's isa.mk
# says its machine and the compiler's flags, which numbers/cpu/ shares. Folders of other machines are left out.
include $(sort $(wildcard src/kernels/cpu/*/isa.mk))
MACHINE := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine)))
OTHER_ISA := $(foreach n,$(notdir $(wildcard src/kernels/cpu/*)),$(if $(filter-out $(MACHINE),$(MACHINE_$n)),$n))
isa_flags   = $(ISA_$(notdir $(patsubst %/,%,$(dir $<))))

LIB_SRC := $(filter-out src/cli/% src/server/% $(foreach n,$(OTHER_ISA),src/kernels/cpu/$n/% src/numbers/cpu/$n/%),$(sort $(shell find src -name '*.c')))
SERVER_SRC := $(sort $(wildcard src/server/*.c))
CLI_SRC := $(sort $(shell find src/cli -name '*.c'))
LIB_OBJ := $(LIB_SRC:%.c=$(BUILD)/%.o) $(BUILD)/gen/registry.o
SERVER_OBJ := $(SERVER_SRC:%.c=$(BUILD)/%.o)
CLI_OBJ := $(CLI_SRC:%.c=$(BUILD)/%.o) $(BUILD)/gen/registry_cli.o
TEST_SUPPORT := $(patsubst %.c,$(BUILD)/%.o,$(sort $(wildcard tests/support/*.c)))
FUZZ    := $(patsubst tests/fuzz/%.c,%,$(sort $(wildcard tests/fuzz/fuzz_*.c)))
TESTS   := $(patsubst tests/%.c,$(BUILD)/tests/%,$(sort $(wildcard tests/test_*.c))) $(FUZZ:%=$(BUILD)/tests/%)

# CUDA kernels, if nvcc is installed (CUDA=0 leaves them out, CUDA=1 requires it): a library of their own that is loaded
# at run time. Machine code for sm_80 runs on 8.6 and 8.9, that for 9.0 on 9.0a; newer devices compile the PTX of 9.0.
# Where a GPU is, only its architecture is compiled, in a third of the time; CUDA_ARCH=all makes a library for others.
NVCC ?= nvcc
CUDA ?= $(if $(SAN),0,$(if $(shell command -v $(NVCC) 2>/dev/null),1,0))
CUDA_ALL_ARCH := 75 80 90
ifeq ($(CUDA_ARCH)$(CUDA),1)
CUDA_ARCH := $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d . | \
	awk -v all='$(CUDA_ALL_ARCH)' '{ n = split(all, a, " "); while (n && a[n] > $$1 + 0) n--; if (n) print a[n] }' | sort -un)
endif
ifneq ($(filter-out all,$(CUDA_ARCH)),$(CUDA_ARCH))
override CUDA_ARCH := $(CUDA_ALL_ARCH)
endif
CUDA_ARCH := $(or $(CUDA_ARCH),$(CUDA_ALL_ARCH))
ifneq ($(filter %a %f,$(CUDA_ARCH)),)
$(error CUDA_ARCH: expected numbers such as 90, found '$(filter %a %f,$(CUDA_ARCH))'; 90 has the kernels of sm_90a)
endif
cuda_code = $(foreach a,$1,-gencode arch=compute_$(a),code=sm_$(a)) \
	$(if $(CUDA_FEW),,-gencode arch=compute_$(lastword $1),code=compute_$(lastword $1))
CUDA_CODE = $(call cuda_code,$(CUDA_ARCH))
# The longest compilations first, so that no processor waits for the last one.
CUDA_LONG := wide_mma batch_mma attend linear_many linear_one linear_float wide_float attend_prompt
# Split and Bitwise are for devices with units for 4 bits and for one bit. CUDA_FEW compiles them on any machine.
SLICED_ARCH := $(or $(filter 7% 8%,$(CUDA_ARCH)),$(if $(CUDA_FEW),80))
CUDA_ALL := $(patsubst src/kernels/cuda/%.cu,%,$(sort $(wildcard src/kernels/cuda/*.cu \
	$(if $(SLICED_ARCH),src/kernels/cuda/sliced/*.cu))))
CUDA_OBJ := $(patsubst %,$(BUILD)/src/kernels/cuda/%.o,$(CUDA_LONG) $(filter-out $(CUDA_LONG),$(CUDA_ALL)))
# CUDA_FEW=1 checks that the kernels compile, on a machine without a GPU: the largest for a few formats
# (kernels/cuda/few.cuh), all of them with the compiler's fewest optimisations (where nvcc knows -Ofc) and without PTX
# for later devices. Its objects have names of their own.
CUDA_FEW ?=
ifneq ($(CUDA_FEW),)
# Files that compile together, in half of the time: CUDA's headers are read once. Names in the files of a group differ,
# and their shared memory has the same alignment.
FEW_GROUPS := linear rows small prompt experts ops sliced
FEW_linear := linear_one linear_many linear_float
FEW_rows := wide linear_left linear_pair linear_kept
FEW_small := used strategies move linear tables attend_store table rows shortlist linear_cluster
FEW_sliced := sliced/sliced sliced/split sliced/bitwise
FEW_prompt := attend_prompt residual
FEW_experts := experts experts_few experts_float experts_wide
FEW_ops := recurrent route sample
FEW_ALONE := $(filter-out $(foreach g,$(FEW_GROUPS),$(FEW_$g)),$(CUDA_LONG) $(filter-out $(CUDA_LONG),$(CUDA_ALL)))
CUDA_OBJ := $(FEW_GROUPS:%=$(BUILD)/gen/few_%.o) $(FEW_ALONE:%=$(BUILD)/src/kernels/cuda/%.few.o)
CUDA_QUICK := $(shell $(NVCC) -Ofc max --version >/dev/null 2>&1 && echo -Ofc max)
endif
CUDA_LIB := $(if $(filter 1,$(CUDA)),$(BUILD)/libnibble-cuda.so)
# Files with instructions that only 9.0a has test for it; they are compiled for it, and are empty elsewhere.
comma := ,
SM90A := $(patsubst %.cu,$(BUILD)/%.o,$(shell grep -lE 'NIB_SM90A|__CUDA_ARCH_FEAT_SM90_ALL' src/kernels/cuda/*.cu))
$(SM90A) $(SM90A:.o=.few.o): CUDA_CODE := $(if $(filter 90,$(CUDA_ARCH)),-DNIB_SM90A) \
	$(subst compute_90$(comma)code=sm_90,compute_90a$(comma)code=sm_90a,$(CUDA_CODE))
$(BUILD)/gen/few_sliced.o $(BUILD)/src/kernels/cuda/sliced/%.o: CUDA_CODE = $(call cuda_code,$(SLICED_ARCH))
$(BUILD)/gen/few_small.o $(BUILD)/src/kernels/cuda/strategies.o: CUDA_CODE += $(if $(SLICED_ARCH),-DNIB_SLICED)

all: $(CUDA_LIB) $(BUILD)/nibble $(BUILD)/libnibble.a ## the nibble command and the library (default)

$(BUILD)/libnibble-cuda.so: $(CUDA_OBJ) $(BUILD)/gen/cuda-objects
	$(NVCC) -shared -cudart static -Xcompiler -static-libgcc,-static-libstdc++ -Xlinker --no-undefined -o $@ $(CUDA_OBJ)
# The list of linked objects: another list links again, even if its objects are older.
$(BUILD)/gen/cuda-objects: FORCE
	@mkdir -p $(@D)
	@echo $(CUDA_OBJ) | cmp -s - $@ || echo $(CUDA_OBJ) > $@
NVCC_COMPILE = $(NVCC) -std=c++17 -O3 -fmad=false $(CUDA_CODE) -Iinclude -Isrc -Xcompiler -fPIC,-fvisibility=hidden,-Wall \
	-MMD -MP -MF $(@:.o=.d) -c -o $@
$(BUILD)/%.o: %.cu
	@mkdir -p $(@D)
	$(NVCC_COMPILE) $<
$(BUILD)/%.few.o: %.cu
	@mkdir -p $(@D)
	$(NVCC_COMPILE) $(CUDA_QUICK) -DNIB_CUDA_FEW $<
$(FEW_GROUPS:%=$(BUILD)/gen/few_%.cu): $(BUILD)/gen/few_%.cu: Makefile
	@mkdir -p $(@D)
	@printf '#include "kernels/cuda/%s.cu"\n' $(FEW_$*) > $@
$(FEW_GROUPS:%=$(BUILD)/gen/few_%.o): $(BUILD)/gen/few_%.o: $(BUILD)/gen/few_%.cu
	$(NVCC_COMPILE) $(CUDA_QUICK) -DNIB_CUDA_FEW $<

# The library with all its symbols: for the command, and for tests, which use internals.
$(BUILD)/libinternal.a: $(LIB_OBJ)
	@rm -f $@
	$(AR) rcs $@ $(LIB_OBJ)

# The server is part of the command; tests link the parts that they use.
$(BUILD)/libserver.a: $(SERVER_OBJ) $(BUILD)/gen/server_page.o
	@rm -f $@
	$(AR) rcs $@ $^
$(BUILD)/gen/server_page.c: src/server/page/page.html $(wildcard src/server/page/*) tools/page.sh
	@mkdir -p $(@D)
	sh tools/page.sh $< server_page > $@

$(BUILD)/nibble: $(CLI_OBJ) $(BUILD)/libserver.a $(BUILD)/libinternal.a
	$(CC) $(LDFLAGS) -o $@ $^ $(shell pkg-config --libs $(CLI_PKGS)) $(LDLIBS)

# For other programs: one object that exports only the names of nib.h, so that no internal name can clash.
$(BUILD)/libnibble.a: $(LIB_OBJ)
	@rm -f $@
	$(LD) -r -o $(BUILD)/libnibble.o $(LIB_OBJ)
	$(OBJCOPY) --localize-hidden $(BUILD)/libnibble.o
	$(AR) rcs $@ $(BUILD)/libnibble.o

$(BUILD)/libnibble.so: $(LIB_OBJ)
	$(CC) -shared $(LDFLAGS) -Wl,-soname,libnibble.so.0 -o $@ $(LIB_OBJ) $(LDLIBS)

# The folders with the most instances of kernels. Debug information on variables of inlined calls takes half of a
# compiler's time and nine tenths of an object's size, so these have line numbers only; the code is the same. Under a
# sanitizer, which checks every access, nothing is inlined, no pointer's arithmetic is checked as well (a third of the
# time), and no call gets a frame on the heap: kernels keep no address of a variable.
NO_FAKE_FRAMES := $(if $(findstring address,$(SAN)),$(if $(findstring clang,$(CC)),-fsanitize-address-use-after-return=never,--param asan-use-after-return=0))
INSTANTIATED := $(BUILD)/src/kernels/%.o $(BUILD)/src/numbers/cpu/%.o
$(INSTANTIATED): CFLAGS += -g1
ifneq ($(SAN),)
$(INSTANTIATED): CFLAGS += -fno-inline -fno-sanitize=pointer-overflow $(NO_FAKE_FRAMES)
$(BUILD)/src/numbers/cpu/%.o: CPPFLAGS += -DPACK_INLINE="static inline"
endif
# Kernels have their instructions in a good order. gcc (not clang) would move each expression to where its result is
# used, which makes AVX2's products 3 % slower (docs/optimisation-log.md).
$(BUILD)/src/kernels/cpu/%.o: CFLAGS += $(if $(findstring clang,$(CC)),,-fno-tree-ter)
# The scalar reference compiles quickly, and takes most of the time of the tests that compare with it.
ifneq ($(SAN),)
$(BUILD)/src/kernels/cpu/ref/%.o: CFLAGS += -O2 -finline -finline-functions
endif
PLAIN := arch cli hub profile server
# Sanitized tests spend most of their time in planning, layouts and the making of residuals; grammars, measurements and
# sessions take less time in a test than the test itself.
PLAIN += $(if $(SAN),grammar measure session,engine model)
$(foreach folder,$(PLAIN),$(BUILD)/src/$(folder)/%.o): CFLAGS += $(PLAIN_OPT)
# No cast drops a const. Exceptions: the command's callbacks, which get their arguments as `void *`, and kernels, whose
# pointers to constant arrays gcc takes for such casts.
$(patsubst %,$(BUILD)/%%.o,$(filter-out src/cli/ src/kernels/,$(wildcard src/*/))): CFLAGS += -Wcast-qual
$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) $(isa_flags) -MMD -MP -c -o $@ $<

# Open lists: every src/arch/NAME.c defines `const arch_desc arch_NAME`, every src/cli/cmd_NAME.c a
# `const cli_command cmd_NAME`, every src/kernels/cpu/NAME/ a `const kernel_isa kernels_NAME`,
# every src/numbers/cpu/NAME/ a `const pack_isa packers_NAME`. The tables are
# written at each run and replaced only when they change, so that removed files are noticed too.
$(BUILD)/gen/registry.c $(BUILD)/gen/registry_cli.c: FORCE
	@mkdir -p $(@D)
	@new=$@.$$$$; sh tools/registry.sh $(if $(findstring _cli,$@),cli,lib $(OTHER_ISA)) > $$new && \
		if cmp -s $$new $@; then rm $$new; else mv $$new $@; fi
$(BUILD)/gen/%.o: $(BUILD)/gen/%.c
	$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<
FORCE:

# ---- tests ----

# There are 150 programs to link, each with the whole library: use the fastest linker that is installed, with one thread,
# since make starts as many links as there are processors.
TEST_LINK := $(firstword $(foreach l,lld gold,$(if $(shell command -v ld.$l 2>/dev/null),-fuse-ld=$l)))
TEST_LINK += $(if $(filter %lld,$(TEST_LINK)),-Wl$(comma)--threads=1)
# TEST_STRIP=1: without debug information, for runs that debug nothing: 2 GB less to write and to read.
TEST_LINK += $(if $(TEST_STRIP),-Wl$(comma)--strip-debug)
# tests/support/process.c notes the regions of memory that come and go; memory_equal.c compares fast.
TEST_LIBS := -Wl,--wrap=mem_map,--wrap=mem_map_sparse,--wrap=mem_unmap,--wrap=_assert_memory_equal -lcmocka
$(BUILD)/tests/%.o: CPPFLAGS += -Itests
# Without optimisation tests compile in half the time, and take 2 % longer; the emulated AMX is a kernel.
$(BUILD)/tests/%.o: CFLAGS += $(TEST_OPT)
$(BUILD)/tests/support/%.o: CFLAGS += -O1
# The fake GPU computes, so it is optimised. A sanitizer checks the addresses that it gets, not its arithmetic.
$(BUILD)/tests/support/fakecuda%.o: CFLAGS += -O2 $(if $(SAN),-fno-sanitize=undefined)
# The AMX kernels over tiles in plain C: they still need AVX-512 for the rest.
$(BUILD)/tests/support/amx_emulated.o $(BUILD)/tests/support/amx_emulated_rows.o: CFLAGS += -g1 $(OPT) $(ISA_avx512)
ifeq ($(SAN),)
TEST_CODE := $(TEST_SUPPORT) $(BUILD)/libserver.a $(BUILD)/libinternal.a
else
# A sanitized program has 18 MB. Its tests share one library of all code instead of a copy each: 2 GB less to write and to
# read.
TEST_CODE := $(BUILD)/libtests.so
TEST_LIBS += -Wl,-rpath,'$$ORIGIN/..'
$(TEST_CODE): $(TEST_SUPPORT) $(BUILD)/libserver.a $(BUILD)/libinternal.a
	$(CC) -shared $(LDFLAGS) $(TEST_LINK) -Wl,-soname,libtests.so,-Bsymbolic-functions -o $@ \
		-Wl,--whole-archive $^ -Wl,--no-whole-archive $(TEST_LIBS) $(LDLIBS)
endif
$(BUILD)/tests/test_%: $(BUILD)/tests/test_%.o $(TEST_CODE)
	$(CC) $(LDFLAGS) $(TEST_LINK) -o $@ $^ $(TEST_LIBS) $(LDLIBS)

# A test that contains the command, whose main has another name there, and the functions of malloc.
CLI_FAULTS := $(BUILD)/tests/test_cli_faults
$(BUILD)/gen/nibble_main.o: $(BUILD)/src/cli/main.o
	$(OBJCOPY) --redefine-sym main=nibble_main $< $@
$(CLI_FAULTS): $(patsubst %.c,$(BUILD)/%.o,$(sort $(wildcard tests/faults/*.c))) $(BUILD)/gen/nibble_main.o \
	$(filter-out %/main.o,$(CLI_OBJ))
$(CLI_FAULTS): LDLIBS := $(if $(SAN),,$(BUILD)/libserver.a $(BUILD)/libinternal.a) $(shell pkg-config --libs $(CLI_PKGS)) \
	$(LDLIBS)

# The fake table of CUDA kernels, for tests of the command (NIBBLE_CUDA).
FAKE_CUDA := $(BUILD)/tests/libfakecuda.so
$(FAKE_CUDA): $(filter $(BUILD)/tests/support/fakecuda%.o,$(TEST_SUPPORT)) $(BUILD)/libinternal.a
	$(CC) -shared $(LDFLAGS) -o $@ $^ $(LDLIBS)

# In the test run a fuzz target replays its corpus, tests/data/fuzz/NAME/.
$(BUILD)/tests/fuzz_%: $(BUILD)/tests/fuzz/fuzz_%.o $(BUILD)/tests/fuzz/replay.o $(BUILD)/libserver.a $(BUILD)/libinternal.a
	$(CC) $(LDFLAGS) $(TEST_LINK) -o $@ $^ $(LDLIBS)

# Vocabularies are stored compressed: they are two thirds of the test data, and a quarter of that when compressed.
VOCABULARIES := $(patsubst tests/%.gz,$(BUILD)/tests/%,$(sort $(wildcard tests/data/tokenizer/*.gguf.gz)))
$(BUILD)/tests/data/%.gguf: tests/data/%.gguf.gz
	@mkdir -p $(@D)
	gzip -dc $< > $@

tests: $(TESTS) $(FAKE_CUDA) $(VOCABULARIES) ## build the tests

test: all tests ## build and run every test
	@sh tools/run-tests.sh $(BUILD)

# Tests whose subject has threads, as grep -E takes it.
THREADED := base_thread|read_queue|memory_device|weights_(runs|device)|session_(batch|chat|on_disk|prefix)|exec_visits|engine_(stream|cancel)|server
threaded: $(shell printf '%s\n' $(TESTS) | grep -E 'test_.*($(THREADED))')

SANITIZED = $(MAKE) OPT=-O1 WERROR=$(WERROR)
# The address sanitizer also finds null pointers and accesses beyond an object, so these checks are made once.
ASAN := -fsanitize=address,undefined -fno-sanitize=null,object-size -fno-sanitize-recover=all -fno-omit-frame-pointer
# clang needs 5 s instead of 12 s for 29 files without optimisation; files that compute keep it.
asan-build:
	+@$(SANITIZED) BUILD=$(BUILD)-asan SAN="$(ASAN)" PLAIN_OPT=-O0 all tests
asan: asan-build ## every test under the address and undefined-behaviour sanitizers
	@TEST_TIMEOUT=$${TEST_TIMEOUT:-400} sh tools/run-tests.sh $(BUILD)-asan
tsan-build:
	+@$(SANITIZED) BUILD=$(BUILD)-tsan SAN="-fsanitize=thread" PLAIN_OPT=-O0 threaded
tsan: tsan-build ## the tests that use threads under the thread sanitizer
	@TEST_TIMEOUT=$${TEST_TIMEOUT:-400} sh tools/run-tests.sh $(BUILD)-tsan '$(THREADED)'

# libFuzzer needs clang. One target: make fuzz FUZZ=fuzz_gguf; FUZZ_SECONDS each.
FUZZ_SECONDS ?= 60
fuzz: ## fuzz every parser for FUZZ_SECONDS each (FUZZ=fuzz_NAME for one); needs clang
	@$(MAKE) CC=$(CLANG) BUILD=$(BUILD)-fuzz OPT=-O1 SAN="-fsanitize=address,undefined,fuzzer-no-link -fno-sanitize-recover=all" \
		$(FUZZ:%=$(BUILD)-fuzz/fuzz/%)
	@sh tools/run-fuzz.sh $(BUILD)-fuzz $(FUZZ_SECONDS) $(FUZZ)
$(BUILD)/fuzz/%: $(BUILD)/tests/fuzz/%.o $(BUILD)/libserver.a $(BUILD)/libinternal.a
	@mkdir -p $(@D)
	$(CC) -fsanitize=address,undefined,fuzzer -o $@ $^ $(LDLIBS)

lint: ## formatting, static analysis, the order of the modules; SINCE=main: only of what differs from main
	+@BUILD=$(BUILD) CLANG_FORMAT=$(CLANG_FORMAT) SINCE=$(SINCE) sh tools/lint.sh
# clang-tidy and cppcheck, by folder. A file is checked again when it was compiled again; all files are when the checks
# change. With a list of files in ANALYSED, only these are checked, and that is not noted down.
TIDY_STATES ?= 10000
PART := $(if $(filter command,$(origin ANALYSED)),-in-part)
ANALYSED := $(LIB_SRC) $(SERVER_SRC) $(CLI_SRC)
define ANALYSIS
analysis: $(BUILD)/$(1)analysed-$(TIDY_STATES)$(PART)
$(BUILD)/$(1)analysed-$(TIDY_STATES)$(PART): .clang-tidy tools/lint.sh $(2:%.c=$(BUILD)/%.o)
	@TIDY_STATES=$(TIDY_STATES) sh tools/lint.sh --analyse \
		$$(if $$(filter-out %.o,$$?),$(2),$$(patsubst $(BUILD)/%.o,%.c,$$?)) -- $$(ISA_$(notdir $(1:%/=%)))
	@$(if $(PART),,touch $$@)
endef
$(foreach folder,$(sort $(dir $(ANALYSED))),$(eval $(call ANALYSIS,$(folder),$(strip $(foreach f,$(ANALYSED),$(if $(filter $(folder),$(dir $f)),$f))))))

# Tests often wait, for a disk, a socket or a signal, so lint runs beside them, with lower priority. Its analyzer looks
# at fewer states of a function than `make lint`.
check: all tests benches ## build, run every test, the longest ones shorter, lint: what is worth doing before each commit
	+@TIDY_STATES=3000 nice -n 15 $(MAKE) -s lint >$(BUILD)/lint.log 2>&1 & lint=$$!; \
		code=0; NIBBLE_QUICK=1 sh tools/run-tests.sh $(BUILD) || code=1; \
		wait $$lint || code=1; cat $(BUILD)/lint.log; exit $$code

benches: $(patsubst %.c,$(BUILD)/%.o,$(wildcard bench/bench_*.c)) ## compile the measuring programs of bench/

# Kernels alone: $(BUILD)/bench/bench_kernels [ISA] [threads].
$(BUILD)/bench/bench_%: $(BUILD)/bench/bench_%.o $(BUILD)/bench/product.o $(TEST_SUPPORT) $(BUILD)/libinternal.a
	$(CC) $(LDFLAGS) -o $@ $^ $(TEST_LIBS) $(LDLIBS)

$(BUILD)/bench/%.o: CPPFLAGS += -Itests
$(BUILD)/bench/bench_amx.o: CFLAGS += $(ISA_amx)

SOAK_SECONDS ?= 3600
soak: all ## a server under random requests for SOAK_SECONDS (3600): no answer wrong or lost, memory flat
	NIBBLE=$(BUILD)/nibble SOAK_SECONDS=$(SOAK_SECONDS) sh tests/cli_soak.sh

FAULTS ?= 15000
faults: $(CLI_FAULTS) ## FAULTS (15000) failed allocations, reads and writes: no crash, no wrong answer with exit 0
	NIBBLE_FAULTS=$(FAULTS) $(CLI_FAULTS)

clients: all ## the server asked by Python packages (openai, anthropic, ollama, langchain, litellm, lm-eval, ...) that pip fetches
	NIBBLE=$(BUILD)/nibble sh tests/clients.sh

bench: all ## speed on the model in MODEL=... (default: smollm2, when it is there)
	$(BUILD)/nibble bench $(or $(MODEL),smollm2)

# ---- installation ----

install: all $(BUILD)/libnibble.so ## install under PREFIX (default /usr/local), below DESTDIR
	@DESTDIR="$(DESTDIR)" PREFIX="$(PREFIX)" VERSION="$(VERSION)" PKGS="$(PKGS)" STRIP="$(STRIP)" sh tools/install.sh $(BUILD)

uninstall: ## remove what install put there
	@DESTDIR="$(DESTDIR)" PREFIX="$(PREFIX)" sh tools/install.sh --remove

clean: ## remove every build folder
	rm -rf $(BUILD) $(BUILD)-asan $(BUILD)-tsan $(BUILD)-fuzz

help: ## this list
	@sed -n 's/^\([a-z]*\):[^#]*## \(.*\)/  \1\t\2/p' Makefile | expand -t 14
	@echo "  variables: CC OPT DEBUG SAN WERROR BUILD PREFIX DESTDIR CUDA CUDA_ARCH NVCC"

.PHONY: all tests test check benches asan asan-build tsan tsan-build threaded fuzz lint analysis soak faults clients bench install uninstall clean help FORCE
.SECONDARY:
.DELETE_ON_ERROR:
-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)

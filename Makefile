# specd. One file, out-of-tree objects, nothing to configure: `make help` lists the targets.
CC    ?= cc
NVCC  ?= nvcc
CLANG ?= clang
FMT   ?= clang-format-14
MODE  ?= release
BUILD ?= build
B     := $(BUILD)/$(MODE)
VERSION := 0.1.0

# CUDA is built when nvcc is there: CUDA=0 leaves it out, ARCH names the GPU.
CUDA  ?= $(if $(shell command -v $(NVCC) 2>/dev/null),1,0)
ARCH  ?= 90a
CUDA_HOME ?= $(abspath $(dir $(shell readlink -f $$(command -v $(NVCC)) 2>/dev/null))..)
# Other GPUs from sm_80 on run the portable code, which the driver compiles when it is first loaded.
CU_FLAGS = -std=c++17 -I. -MMD -MP -O3 -g -lineinfo -gencode arch=compute_$(ARCH),code=sm_$(ARCH) \
           -gencode arch=compute_80,code=compute_80 -DSPECD_CUDA_ARCH=$(shell echo $(ARCH) | tr -d a-z) \
           -DSPECD_CUDA_WARPGROUP=$(if $(filter 90a,$(ARCH)),1,0) $(NVFLAGS)
CUDA_LIBS_1 = -L$(CUDA_HOME)/lib64 -L$(CUDA_HOME)/targets/x86_64-linux/lib -Wl,-rpath,$(CUDA_HOME)/lib64 \
              -lcublasLt -lcudart_static -lstdc++ -ldl -lrt

PKGS := libuv libmicrohttpd jansson libpcre2-8 libutf8proc
OPT_release := -O3 -g -DNDEBUG
OPT_debug   := -O0 -g3
SAN_asan    := -fsanitize=address,undefined -fno-sanitize-recover=all
SAN_tsan    := -fsanitize=thread
OPT = $(or $(OPT_$(MODE)),-O2 -g -fno-omit-frame-pointer) $(SAN_$(MODE))
# No contraction: a row's bits must not depend on what the compiler fused (kernels/README.md).
C_FLAGS = -std=c17 -D_GNU_SOURCE -I. -MMD -MP -DSPECD_VERSION='"$(VERSION)"' -DHAVE_CUDA=$(CUDA) $(OPT) \
          -ffp-contract=off -Wall -Wextra -Wshadow -Wvla -Wstrict-prototypes -Wmissing-prototypes \
          $(if $(WERROR),-Werror) $(shell pkg-config --cflags $(PKGS)) $(CFLAGS)
LIBS = $(shell pkg-config --libs $(PKGS)) $(CUDA_LIBS_$(CUDA)) -lpthread -lm
TEST_LIBS = $(shell pkg-config --libs check liblzma)

LIB_SRC  := $(sort $(shell find engine kernels attention $(wildcard speculative) -name '*.c'))
CU_SRC   := $(if $(filter 1,$(CUDA)),$(sort $(shell find kernels attention -name '*.cu')))
SRV_SRC  := $(filter-out server/main.c,$(sort $(shell find server -name '*.c')))
TEST_SRC := $(sort $(shell find test -name '*.c' -not -path 'test/bench/*' -not -path 'test/real/*' -not -path 'test/gpu/*' -not -path 'test/fuzz/main.c'))
GPU_SRC  := $(sort $(wildcard test/gpu/*.c))
BENCH    := $(filter-out test/bench/trace_gpu.c,$(sort $(wildcard test/bench/*.c)))
obj       = $(patsubst %,$(B)/%.o,$(1))

all: $(B)/specd $(B)/link ## build the daemon: build/specd
$(B)/link: $(B)/specd
	@ln -sfn $(MODE)/specd $(BUILD)/specd && touch $@
$(B)/libspecd.a: $(call obj,$(LIB_SRC) $(CU_SRC)) ; @rm -f $@ && $(AR) rcs $@ $^
$(B)/specd: $(call obj,server/main.c $(SRV_SRC)) $(B)/libspecd.a
	$(CC) $(SAN_$(MODE)) -o $@ $^ $(LIBS)
$(B)/specd_test: $(call obj,$(TEST_SRC) $(SRV_SRC)) $(B)/libspecd.a
	$(CC) $(SAN_$(MODE)) -o $@ $^ $(TEST_LIBS) $(LIBS)
$(B)/real_chat: $(call obj,test/real/test_chat_real.c test/unit/chat_cases.c $(SRV_SRC)) $(B)/libspecd.a
	$(CC) $(SAN_$(MODE)) -o $@ $^ $(LIBS)
$(B)/specd_test_gpu: $(call obj,$(GPU_SRC)) $(B)/libspecd.a
	$(CC) -o $@ $^ $(TEST_LIBS) $(LIBS)
$(B)/bench_%: $(B)/test/bench/%.c.o $(B)/libspecd.a
	$(CC) $(SAN_$(MODE)) -o $@ $^ $(LIBS)
$(B)/%.c.o: %.c $(B)/flags
	@mkdir -p $(@D) && echo "  CC $<" && $(CC) $(C_FLAGS) $(X_FLAGS) -I$(B) -c $< -o $@
# the CPU device's noise bits
$(B)/kernels/cuda/sample.cu.o $(B)/kernels/cuda/draft.cu.o: private NVFLAGS += -fmad=false
$(B)/%.cu.o: %.cu $(B)/flags
	@mkdir -p $(@D) && echo "  NVCC $<" && $(NVCC) $(CU_FLAGS) -c $< -o $@
$(B)/flags: FORCE # rebuild when flags change
	@mkdir -p $(B); echo '$(CC) $(C_FLAGS) $(CU_FLAGS)' | cmp -s - $@ || echo '$(CC) $(C_FLAGS) $(CU_FLAGS)' >$@
# Every function `Suite *suite_NAME(void)` under test/ is run: a new file needs no list to edit.
$(B)/suites.inc: FORCE
	@mkdir -p $(B); sed -nE 's/^Suite \*(suite_[a-z0-9_]+)\(void\)$$/SUITE(\1)/p' $(TEST_SRC) | sort >$@.new; $(call if_new,$@)
$(B)/fuzz.inc: FORCE
	@mkdir -p $(B); printf '%s\n' $(patsubst test/fuzz/%.c,'FUZZ(%)',$(sort $(wildcard test/fuzz/fuzz_*.c))) >$@.new; $(call if_new,$@)
if_new = cmp -s $1.new $1 && rm $1.new || mv $1.new $1
$(call obj,test/run.c): $(B)/suites.inc
$(call obj,test/unit/test_fuzz_replay.c): $(B)/fuzz.inc
# a suite is declared by the generated list, not by a header
$(call obj,$(TEST_SRC)): private X_FLAGS := -Wno-missing-prototypes

JOBS ?= $(shell nproc) # suites at once
ifneq ($(T),)
RUN_ENV := CK_RUN_SUITE=$(word 1,$(subst :, ,$(T))) $(if $(findstring :,$(T)),CK_RUN_CASE=$(word 2,$(subst :, ,$(T))))
endif
test: $(B)/specd_test $(B)/specd ## C tests, no network (T=suite or T=suite:case runs one)
	$(RUN_ENV) TEST_JOBS=$(if $(T),1,$(JOBS)) CK_DEFAULT_TIMEOUT=60 CK_TIMEOUT_MULTIPLIER=$(if $(SAN_$(MODE)),5,1) timeout 1500 $(B)/specd_test
test-gpu: $(B)/specd_test_gpu ## the contracts on a GPU, against the CPU device (no GPU is a failure)
	timeout 600 $(B)/specd_test_gpu
sanitize-gpu: $(B)/specd_test_gpu ## the same at small sizes under compute-sanitizer: memory, initialisation, races
	sh scripts/sanitize_gpu.sh
asan tsan: ## the same tests under address+undefined or thread sanitizer
	$(MAKE) MODE=$@ CUDA=0 test T=$(T)
test-real: ## a real public model against transformers (downloads)
	sh scripts/test_real.sh
bench: $(patsubst test/bench/%.c,$(B)/bench_%,$(BENCH)) $(B)/specd ## build the benchmarks (test/bench/README.md)
trace: $(B)/libtrace_gpu.so ## a library that reports the kernels of any run on a GPU (test/bench/README.md; needs CUPTI)
CUPTI_LIB = $(firstword $(wildcard $(CUDA_HOME)/lib64/libcupti.so $(CUDA_HOME)/lib/libcupti.so $(CUDA_HOME)/extras/CUPTI/lib64/libcupti.so))
$(B)/libtrace_gpu.so: test/bench/trace_gpu.c
	@test -n "$(CUPTI_LIB)" || { echo "no libcupti.so under $(CUDA_HOME)"; exit 1; }
	@mkdir -p $(@D)
	$(CC) -std=c17 -D_GNU_SOURCE -O2 -fPIC -shared -Wall -Wextra -I$(CUDA_HOME)/include -I$(CUDA_HOME)/extras/CUPTI/include \
	  -o $@ $< $(CUPTI_LIB) -Wl,-rpath,'$$ORIGIN' -Wl,-rpath,$(dir $(CUPTI_LIB)) -lstdc++ -lpthread
fuzz: ## fuzz one parser: make fuzz F=json [FUZZ_SECONDS=60]
	@test -n "$(F)" || { echo "usage: make fuzz F=NAME, one of: $(patsubst test/fuzz/fuzz_%.c,%,$(wildcard test/fuzz/fuzz_*.c))"; exit 2; }
	@mkdir -p $(BUILD)/fuzz test/fuzz/corpus/$(F)
	$(CLANG) -std=c17 -D_GNU_SOURCE -I. -g -O1 -ffp-contract=off -fsanitize=fuzzer,address,undefined -DSPECD_VERSION='"$(VERSION)"' \
	  -DFUZZ_TARGET=fuzz_$(F) $(shell pkg-config --cflags $(PKGS)) -o $(BUILD)/fuzz/$(F) \
	  test/fuzz/main.c test/fuzz/fuzz_$(F).c $(LIB_SRC) $(SRV_SRC) $(LIBS)
	$(BUILD)/fuzz/$(F) -max_total_time=$(or $(FUZZ_SECONDS),60) -rss_limit_mb=2048 -timeout=10 \
	  -artifact_prefix=$(BUILD)/fuzz/ test/fuzz/corpus/$(F)
check: ## format, layers, each header alone, banned calls
	FMT=$(FMT) sh scripts/check.sh
format: ## rewrite the sources in the project's format
	find engine kernels attention speculative server test \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \) -exec $(FMT) -i {} +
install: all ## install into $(DESTDIR)$(PREFIX)
	install -D -m 755 $(B)/specd $(DESTDIR)$(or $(PREFIX),/usr/local)/bin/specd
clean: ## remove build output
	rm -rf $(BUILD)
help: ## this list
	@sed -nE 's/^([a-z][a-z -]*):[^#]*## (.*)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-22s %s\n", $$1, $$2}'
FORCE:
.PHONY: all test test-gpu sanitize-gpu test-real asan tsan bench trace fuzz check format install clean help FORCE
-include $(shell find $(B) -name '*.d' 2>/dev/null)

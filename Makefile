# Every target is what CI runs. Needs Go >= 1.26, gcc and make; nothing else for build, demo and test.
GO      ?= go
BIN     := bin/patchbay
SHELL   := /bin/bash
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
# Public tokenizer vocabularies that tests compare with; they are other people's data and not in this repository.
export PATCHBAY_TEST_TOKENIZERS ?= $(abspath ../shared/tokenizers)

.PHONY: build demo test check lint fmt race fuzz bench soak loc tools clean vendor-client comfyui-test fake cuda-check cuda-kernels

build:
	$(GO) build -ldflags "-X main.version=$(VERSION)" -o $(BIN) .

demo: build
	$(BIN) demo --out demo.png

# The whole proof, one line per part with its time. tests/run.sh prints a table at the end.
test:
	@tests/run.sh

# The quick form while working.
check:
	$(GO) vet ./... && $(GO) test -short ./...

tools: bin/golangci-lint
bin/golangci-lint: tools/go.mod
	cd tools && $(GO) build -o ../bin/ tool && touch ../bin/golangci-lint

lint: tools
	$(GO) mod tidy -diff
	bin/golangci-lint run ./...
	@if command -v shellcheck >/dev/null; then shellcheck install.sh tests/*.sh .ci/run; else echo "shellcheck NOT RUN: not installed (apt-get install shellcheck)"; fi

# The CUDA backend on a device that needs no GPU, with g++: conformance, streams, mistakes that must be noticed, and the program.
fake:
	$(GO) test -count 1 -timeout 15m ./engine/cuda
	$(GO) test -count 1 -timeout 10m -run TestCUDA ./tests

# The CUDA side without a GPU: PTX against its sources, prototypes against NVIDIA's header, registers and spills, and the quick tests on the fake device.
cuda-check:
	@tests/cuda_check.sh
	$(GO) test -short -timeout 5m ./engine/cuda

# Makes the committed PTX anew; after every change of engine/cuda/kernels.
cuda-kernels:
	@tests/cuda_check.sh --write

fmt: tools
	bin/golangci-lint fmt ./...

race:
	$(GO) test -race -short -skip 'MoreDevicesAreNeverSlower|ScheduleNeedsNoBuffers|StagesOfPublished' ./engine/... ./models/sampling ./models/tokenizer ./parallel ./node/... ./ipc/...

# Coverage fuzzing, seconds per target; the seeds run in every `go test`, and mutations of them without coverage (tests/hammer).
FUZZTIME ?= 10s
fuzz:
	@tests/fuzz.sh $(FUZZTIME)

bench:
	$(GO) test -run '^$$' -bench . -benchtime 1x ./engine/cpu ./models/... ./parallel

# The long forms of the storms and many small jobs, then 10,000,000 executions of every parser of bytes from outside. An hour on two processors.
soak:
	$(GO) test -count 1 -timeout 60m -tags soak ./parallel -v -run 'CancelAt|ManyJobs'
	$(GO) test -count 1 -timeout 120m -tags soak ./tests -v -run 'TestDurable|TestFaults|TestRouting|TestTinyJobs'
	$(GO) test -count 1 -timeout 120m -p 1 -tags soak ./ipc/... ./node/... -v -run UnderTheHammer

# The node package for ComfyUI carries the Python client: it is copied in as one folder. `go test ./tests -run ComfyUI` says when the copy is old.
vendor-client:
	rm -rf comfyui/client && mkdir comfyui/client && cp clients/python/patchbay/*.py comfyui/client/

# Runs the node in a real ComfyUI, headless on the CPU, and compares with its own sampling: make comfyui-test COMFYUI=~/ComfyUI PYTHON=~/ComfyUI/venv/bin/python
PYTHON ?= python3
comfyui-test: build
	@test -n "$(COMFYUI)" || { echo "say which ComfyUI: make comfyui-test COMFYUI=<folder> PYTHON=<its python>"; exit 2; }
	$(PYTHON) tests/comfyui/drive.py $(COMFYUI) --program $(abspath $(BIN))

loc:
	@for d in cli daemon ipc node parallel models engine comfyui tests; do [ -d $$d ] || continue; \
	  printf '%-10s code %6d  test %6d\n' $$d \
	  $$(find $$d -name '*.go' ! -name '*_test.go' -o -name '*.c' -o -name '*.h' -o -name '*.inc' | xargs cat | wc -l) \
	  $$(find $$d -name '*_test.go' | xargs -r cat | wc -l); done

clean:
	rm -rf bin

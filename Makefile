# Every target is what CI runs. Needs Go >= 1.26, gcc and make for build and demo, and ffmpeg >= 5.1 for test.
GO      ?= go
BIN     := bin/patchbay
SHELL   := /bin/bash
PYTHON  ?= python3
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
# Public tokenizer vocabularies that tests compare with; they are other people's data and not in this repository.
export PATCHBAY_TEST_TOKENIZERS ?= $(abspath ../shared/tokenizers)
# Compilers live for seconds: collecting less takes a sixth of their processor time (docs/speed.md, "The test command").
export GOFLAGS += '-toolexec=env GOGC=400'

.PHONY: build demo test test-all check race lint fmt tools clients fake sim sim-plants fuzz bench soak readme loc clean
.PHONY: http-clients served-clients vulnerabilities cuda-check cuda-kernels gpu gpu-first gpu-second gpu-pack gpu-rehearse
.PHONY: comfyui-test comfyui-templates families-test release release-rehearse

build:
	$(GO) build -ldflags "-X main.version=$(VERSION)" -o $(BIN) .
demo: build
	$(BIN) demo --out demo.png

# What every change must pass: go test -short ./..., the race part and lint. test-all leaves out -short: what
# is long says so itself (testing.Short, race.Enabled of tests/race); it needs python3. check is without storms.
export SHORT := -short
test-all: export SHORT :=
test test-all:
	@tests/run.sh
check:
	@chrt --batch --pid 0 $$PPID || echo "batch scheduling NOT USED" # a tenth less processor time (docs/speed.md)
	$(GO) vet ./... && $(GO) test -short -p 4 -vet off -timeout 20m ./parallel ./ipc/jobs ./node/classes ./tests \
	  $$($(GO) list ./... | grep -v /tests/faults)
# The race detector slows Go tenfold, so it watches the packages with goroutines, in the short forms of their tests.
# Without DWARF, which a report does not need, there is a quarter less to compile.
race:
	$(GO) test -count 1 -p 4 -parallel 6 -vet off -timeout 60m -race -gcflags=all=-dwarf=false -short ./ipc/jobs ./parallel \
	  ./ipc/... ./node/... ./parallel/{comm,scope,rank,remote,leader,denoise}/... ./models/{sampling,tokenizer} ./engine/cpu

tools: bin/golangci-lint bin/govulncheck
bin/golangci-lint bin/govulncheck &: tools/go.mod
	cd tools && $(GO) build -o ../bin/ tool && touch ../bin/golangci-lint ../bin/govulncheck
fmt: tools
	bin/golangci-lint fmt ./...
lint: tools
	$(GO) mod tidy -diff
	GOGC=400 bin/golangci-lint run --allow-parallel-runners ./...
	@if command -v shellcheck >/dev/null; then shellcheck install.sh tests/*.sh tests/comfyui/run.sh tests/clients/*/*.sh .ci/run; \
	  else echo "shellcheck NOT RUN: not installed (apt-get install shellcheck)"; fi

# A part of test-all: known vulnerabilities that code reaches, where a database can be had.
vulnerabilities: tools
	@tests/vulnerabilities.sh

# A part of test-all alone: what drives the daemon from outside (Python with pip, the nats command, examples). And what
# is not in test-all: the CUDA backend on devices that need no GPU but g++.
clients:
	$(GO) test -count 1 -timeout 20m ./tests/clients
# Client packages of ComfyUI, unchanged, over HTTP: needs pip. COMFYUI=~/ComfyUI COMFYUI_PYTHON=its-python compares.
http-clients: build
	@COMFYUI="$(COMFYUI)" COMFYUI_PYTHON="$(COMFYUI_PYTHON)" tests/clients/http/run.sh
# Clients of OpenAI's API, of the Model Context Protocol and of webhooks, unchanged: needs pip, and npm for JavaScript.
served-clients: build
	@tests/clients/served/run.sh
# Of packages that have other tests too, only those that the tag adds: the others need no second run.
FAKED := models models/audio parallel parallel/comm/stream tests
fake:
	$(GO) test -count 1 -timeout 30m -tags fakegpu ./engine/cuda/... ./parallel/comm/{localcuda,nccl}
	tests=$$(grep -l '^//go:build.*fakegpu' $(FAKED:%=%/*_test.go) | \
	  xargs sed -n 's/^func \(Test[^(]*\)(.*/\1/p' | paste -sd '|') && \
	$(GO) test -count 1 -timeout 30m -tags fakegpu -short -run "^($$tests)$$" $(FAKED:%=./%)

# The CUDA side without a GPU: the PTX against its sources, prototypes against NVIDIA's headers, registers and spills,
# and the kernels as the PTX says them, translated, with races found.
cuda-check:
	@tests/cuda_check.sh
	FAKEGPU_FROM=ptx $(GO) test -timeout 15m -tags fakegpu -run 'PTX|Conformance|Every|Int8|Blocks|Pack' ./engine/cuda
cuda-kernels: # makes the committed PTX anew; after every change of engine/cuda/kernels
	@tests/cuda_check.sh --write
# On a machine with a GPU: the whole checklist in eight minutes, or a half of it in four. gpu-pack makes what it runs
# where there is Go, and gpu-rehearse runs the same from that on the fake device.
gpu gpu-first gpu-second gpu-pack gpu-rehearse:
	@tests/gpu.sh $(patsubst gpu-%,%,$(filter-out gpu,$@))

# Jobs, daemons and a NATS server in simulated time under faults: SEEDS runs from seed FROM, two minutes for 100; with
# LOSSES=1 all on disks that lose what was written. sim-plants plants the faults that it must find, PLANT: a part of a name.
SEEDS  ?= 500
FROM   ?= 1
LOSSES ?= 0
PLANT  ?= all
sim:
	@set -o pipefail; SIM_SEEDS=$(SEEDS) SIM_FROM=$(FROM) SIM_LOSSES=$(LOSSES) $(GO) test -count 1 -timeout 4h -v \
	  -run Simulation ./tests/sim | grep -v '^ *--- PASS\|^=== RUN\|^=== NAME'
sim-plants:
	SIM_PLANTS="$(PLANT)" SIM_SEEDS=$(SEEDS) $(GO) test -count 1 -timeout 4h -v -run Plants ./tests/sim
fuzz: # FUZZTIME=10s, for each target
	@tests/fuzz.sh $(FUZZTIME)
bench:
	$(GO) test -run '^$$' -bench . -benchtime 1x ./engine/cpu ./models/... ./parallel
soak loc: # the longest forms of all tests, an hour or two; lines by folder
	@tests/$@.sh
readme: # every command of README.md in a fresh clone of what is committed; needs the module of the nats command
	$(GO) test -count 1 -timeout 60m -tags soak ./tests/readme -v
# With a real ComfyUI: make comfyui-test COMFYUI=~/ComfyUI PYTHON=its-python [TEMPLATES=... FAMILIES=...]
comfyui-test comfyui-templates families-test: build
	@COMFYUI="$(COMFYUI)" PYTHON="$(PYTHON)" TEMPLATES="$(TEMPLATES)" FAMILIES="$(FAMILIES)" tests/comfyui/run.sh $@
# Archives, deb, rpm, image, SBOMs and checksums in bin/release (docs/release.md); the rehearsal makes them twice and
# installs each where there is no compiler.
release:
	@tools/release.sh make bin/release
release-rehearse:
	@tools/release.sh twice bin/release && tools/release.sh install bin/release
clean:
	rm -rf bin

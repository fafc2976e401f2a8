# Every target is what CI runs. Needs Go >= 1.26, gcc and make; nothing else for build, demo and test.
GO      ?= go
BIN     := bin/patchbay
SHELL   := /bin/bash
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
# Public tokenizer vocabularies that tests compare with; they are other people's data and not in this repository.
export PATCHBAY_TEST_TOKENIZERS ?= $(abspath ../shared/tokenizers)
# Compilers live for seconds: less collecting takes a sixth of their processor time, more memory of the largest (1.4 GB). Cache entries are the same.
export GOFLAGS += '-toolexec=env GOGC=400'

.PHONY: build demo test test-all check lint fmt race fuzz bench soak loc readme tools clean vendor-client comfyui-test comfyui-templates families-test clients fake cuda-check cuda-kernels gpu gpu-pack gpu-rehearse

build:
	$(GO) build -ldflags "-X main.version=$(VERSION)" -o $(BIN) .

demo: build
	$(BIN) demo --out demo.png

# What every change must pass, one line per part with its time; tests/run.sh prints a table at the end. LONGER is left to test-all, which CI runs: it repeats
# on more models, plans, stores, servers or memory what shorter tests have, as the long forms of all packages but ./tests do. Python and the nats command are `make clients`, the fake GPU is `make fake`.
export LONGER := ^Test(AddressSpaceOf|BenchHosts|Cluster|ComfyUIReplay|FamilyIsOneFolder|Fits|HostsOfTwo|(Jobs|Ranks|Values)StayWithin|LevelsDraw|Scripts|WorkerPeak|TinyJobs|EncodersOf|HintsOfSeveral|LanguageModelThrough|(FLUX2|Krea2|AuraFlow|QwenImage|Lumina2|Chroma)[A-Za-z]*FromFiles|Quantised(Flux|Klein)|Unmerged|BlockAllocates|ChoosingIsQuick|MoreDevices|JobsSideBySide|BF16(Act|Pic)|CacheOn|(Cache|EndTo|Feather|Patches)[A-Za-z]*Match(es)?ComfyUI|ChosenPlanGives|DrawsDoNot|DriftOf|EverySampler|FoldedStagesStay|ForecastEquals|Hal(fBlocks|vesGive)|LateBands|NetsAreForecast|OrderOfRequests|OwnWeights|PartsAreWithin|ScatteredFormOn|SpreadFolded|StagesRead|Stale(Pictures|Values)|(Cached)?Stores(Hold|InEight)|UnevenStages)|^TestBadInput$$/./local$$
test:
	@tests/run.sh
test-all: export LONGER := NONE
test-all:
	@tests/run.sh

# The quick form while working, warm build cache. What takes longest starts first.
check:
	@chrt --batch --pid 0 $$PPID || echo "batch scheduling NOT USED" # as tests/run.sh does, for all that make starts
	$(GO) vet ./... && $(GO) test -short -p 4 -vet off -timeout 20m -skip '$(GPU)|$(LONGER)' ./parallel ./ipc/jobs ./node/classes ./tests $$($(GO) list ./... | grep -v -e /engine/cuda -e /localcuda -e /nccl -e /tests/clients)

tools: bin/golangci-lint
bin/golangci-lint: tools/go.mod
	cd tools && $(GO) build -o ../bin/ tool && touch ../bin/golangci-lint

lint: tools
	$(GO) mod tidy -diff
	GOGC=400 bin/golangci-lint run --allow-parallel-runners ./...
	@if command -v shellcheck >/dev/null; then shellcheck install.sh tests/*.sh .ci/run; else echo "shellcheck NOT RUN: not installed (apt-get install shellcheck)"; fi

# What drives the daemon from outside: the nats command, which takes as long to compile as a tenth of `make test`, Python with its packages (pip), the examples.
clients:
	$(GO) test -count 1 -timeout 20m ./tests/clients

# The CUDA backend on devices that need no GPU, with g++: conformance, streams, plans of several ranks, mistakes that must be noticed, and the program.
export GPU := FakeGPU|^TestCUDA
fake:
	$(GO) test -count 1 -timeout 30m ./engine/cuda ./parallel/comm/localcuda ./parallel/comm/nccl ./parallel/comm/stream
	$(GO) test -count 1 -timeout 20m -run '$(GPU)' ./parallel ./tests

# The CUDA side without a GPU: PTX against its sources, prototypes against NVIDIA's header, registers and spills, and the quick tests on the fake device.
cuda-check:
	@tests/cuda_check.sh
	$(GO) test -short -timeout 5m ./engine/cuda

# On a machine with a GPU: the whole checklist in at most nine minutes, a table and $$OUT/gpu.jsonl. gpu-pack makes what it runs where there is Go, for a
# machine that has none; gpu-rehearse runs the same parts on the fake device.
gpu:
	@tests/gpu.sh
gpu-pack gpu-rehearse:
	@tests/gpu.sh $(@:gpu-%=%)

# Makes the committed PTX anew; after every change of engine/cuda/kernels.
cuda-kernels:
	@tests/cuda_check.sh --write

fmt: tools
	bin/golangci-lint fmt ./...

# The race detector slows Go tenfold, so it watches the packages that have goroutines; models compute through engine's, forecasts and plans are pure.
# WATCHED run whole, and only here: `make test` does not run them a second time without the detector. Of the others are left out the fake device, LONGER and
# ALIKE, tests of the same goroutines (TestExactPlansEqualOneRank runs every method under the detector) or of ranks that run one at a time. Of packages
# that compute much, the tests of what runs side by side; tests of ipc talk to a nats-server in its own process, the one inside a daemon is in `make soak`.
# Many tests wait more than they compute: four packages at a time keep two processors busy. What waits longest starts first.
export WATCHED := ./ipc/jobs ./ipc/serve ./ipc/members ./ipc/worker ./ipc/rights ./ipc/client ./ipc/bulk ./ipc/message ./ipc/meter ./ipc/wire ./models/sampling \
           ./node/files ./node/graph ./node/lru ./node/picture/resample ./parallel/comm ./parallel/group ./parallel/rank ./parallel/remote
RACED   := ./parallel ./parallel/comm/stream ./parallel/comm/deferred
ALIKE   := LateRanksGive|LateAdapters|ExactPlans(Run|Add)|SameBits|Entries(Together|Apart)|ShardedPlansEqual|Halves|Interleaving|Overlap|PostedAhead|Patches(Match|Are|Add)|Int8|AreForecast|AdaptersGo|Prefixes(AreF|AsOne)|BadPrefixes|Nets(Say|Are)|StalePipeline|LateEntries|EntriesThat|EveryItem|SpansTell|ExecutorFollows|PlansOfFollowers|ForecastsHold|ChooseMay|ChoiceFor|PlannerReckons|SharedUnderLimits|Measured(Rates|Stages)
BESIDE  := Concurrent|Each|Stats|Steady|Exec|Plans|Cancel|Panic|Lora|Base
# A race report needs no DWARF, and the detector has compiled packages of its own anyway: a quarter less to compile.
RACE    := -race -gcflags=all=-dwarf=false
race:
	$(GO) test -count 1 -p 4 -parallel 6 -vet off -timeout 40m $(RACE) -short -skip '$(GPU)|$(LONGER)|$(ALIKE)' ./ipc/jobs ./parallel $(WATCHED) $(RACED)
	$(GO) test -count 1 -vet off -timeout 20m $(RACE) -short -run '$(BESIDE)' ./engine/cpu ./models/tokenizer ./node/classes

# Coverage fuzzing, seconds per target; the seeds run in every `go test`, and mutations of them without coverage (tests/hammer).
FUZZTIME ?= 10s
fuzz:
	@tests/fuzz.sh $(FUZZTIME)

bench:
	$(GO) test -run '^$$' -bench . -benchtime 1x ./engine/cpu ./models/... ./parallel

# Every plan on every network, the long forms of the storms, of many small jobs and of the tables of drift, then 10,000,000 executions of every parser of bytes from outside, and
# the server inside a daemon under the race detector, the emulated levels and the program without cgo. An hour on two processors.
soak:
	$(GO) test -count 1 -timeout 90m -tags soak ./parallel -v -skip '$(GPU)'
	$(GO) test -count 1 -timeout 120m -tags soak ./tests/faults ./tests/readme -v
	$(GO) test -count 1 -timeout 120m -p 1 -tags soak ./ipc/... ./node/... -v -run UnderTheHammer
	$(GO) test -count 1 -timeout 60m -race ./ipc/broker ./daemon
	$(GO) test -count 1 -tags emulated ./engine/cpu
	CGO_ENABLED=0 $(GO) build -o /dev/null .

# Every command of README.md, in its order, in a fresh clone of what is committed. Some minutes; needs the module of the nats command.
readme:
	$(GO) test -count 1 -timeout 60m -tags soak ./tests/readme -v

# The node package for ComfyUI carries the Python client: it is copied in as one folder. `go test ./tests -run ComfyUI` says when the copy is old.
vendor-client:
	rm -rf comfyui/client && mkdir comfyui/client && cp clients/python/patchbay/*.py comfyui/client/

# Runs the node in a real ComfyUI, headless on the CPU, and compares with its own sampling: make comfyui-test COMFYUI=~/ComfyUI PYTHON=~/ComfyUI/venv/bin/python
PYTHON ?= python3
comfyui-test: build
	@test -n "$(COMFYUI)" || { echo "say which ComfyUI: make comfyui-test COMFYUI=<folder> PYTHON=<its python>"; exit 2; }
	$(PYTHON) tests/comfyui/drive.py $(COMFYUI) --program $(abspath $(BIN))

# Swaps the loaders of ComfyUI's official templates and runs those of families that are here with tiny models; TEMPLATES is the folder of the package comfyui-workflow-templates-json.
comfyui-templates: build
	@test -n "$(COMFYUI)" -a -n "$(TEMPLATES)" || { echo "say which: make comfyui-templates COMFYUI=<folder> TEMPLATES=<folder> PYTHON=<its python>"; exit 2; }
	$(PYTHON) tests/comfyui/templates.py $(COMFYUI) --program $(abspath $(BIN)) --templates $(TEMPLATES)

# Draws with random checkpoints of real names and widths in that ComfyUI and here, on one rank and on four, and compares: an hour, 6 GB in FAMILIES.
FAMILIES ?= /tmp/patchbay-families
families-test: build
	@test -n "$(COMFYUI)" || { echo "say which ComfyUI: make families-test COMFYUI=<folder> PYTHON=<its python>"; exit 2; }
	$(PYTHON) tests/comfyui/families.py $(COMFYUI) --program $(abspath $(BIN)) --base $(FAMILIES)

# Lines of Go in the packages that the program is made of, by top folder, and the lines of all tests there: the first total is what the plan bounds.
loc:
	@$(GO) list -deps -f '{{if .Module}}{{if .Module.Main}}{{$$d := .Dir}}{{range .GoFiles}}{{$$d}}/{{.}}{{"\n"}}{{end}}{{range .CgoFiles}}{{$$d}}/{{.}}{{"\n"}}{{end}}{{end}}{{end}}' . \
	  | tests/loc.sh

clean:
	rm -rf bin

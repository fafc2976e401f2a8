// Package plan describes how a request is split over ranks: the syntax of plans and what is refused (plan.go), the
// positions of ranks (mesh.go), which rank computes which tokens (ranges.go, rows.go) and which blocks
// (cut.go), which rank holds which weights and when they are gathered (held.go, gathers.go), how work follows the
// speeds of devices (speeds.go) and the names of micro-steps (micro.go). It only computes values. It knows the shape of
// a model, dit.Spec, but no tensor, no running rank, no clock, and no times except the costs that it is given to
// balance.
package plan

import (
	"slices"
	"strconv"
	"strings"

	"patchbay/fault"
	"patchbay/models/dit"
)

// throughout is the warm-up of a pipeline whose evaluations are all synchronous.
const throughout = 10000

// MaxRanks bounds the ranks of one plan.
const MaxRanks = 64

// Plan says how one request is split over ranks. The product of the degrees, Data to Tensor, is the number of ranks.
// Parse fills in the defaults.
type Plan struct {
	Data    int  // parts of the latent batch
	CFG     int  // groups that share the conditioning entries
	Pipe    int  // stages: contiguous ranges of blocks (PipeFusion)
	Ring    int  // ranks that pass K and V around, or gather them
	Gather  bool // the ranks of Ring gather all K and V at once, for each attention; only with Ring > 1
	Ulysses int  // ranks that exchange heads for tokens
	Tensor  int  // ranks that split heads and MLP columns
	Scatter bool // the ranks of a tensor group also split the rows between projections; only with Tensor > 1
	Patches int  // patches of the image that travel through the stages; only with Pipe > 1
	Warmup  int  // evaluations at the start that run synchronously
	Spread  bool // synchronous evaluations run on all stages at once, each on a part of the sequence; only with Pipe > 1
	Choose  int  // a plan of at most this many ranks is to be chosen; 0: the degrees are given
	// with Choose: pipelines with stale keys and values may be chosen, whose images differ a little from one rank's
	Stale bool
	// Shard splits the bytes of every block over the ranks that would hold the same weights. Blocks are gathered before
	// their use. With Pipe > 1 nothing is gathered: every stage holds what its own blocks need.
	Shard bool
	// Stream is how many of the blocks that each rank holds are not kept on its device, but brought from host memory
	// before each use, or StreamOn or StreamAuto; 0: none. With Pipe > 1 every stage then holds what its own blocks need.
	Stream int
	// KV8 stores the keys and values of pipelines in 8 bits; only with Pipe > 1.
	KV8 bool
	// Deterministic makes results bit-identical to those of one rank: where other plans sum in the order of the ranks,
	// inputs are first brought into the order of the sequence, and pipelines are synchronous (ADR 21).
	Deterministic bool
	// Overlap lets transfers run concurrently with computation. Off is for measuring.
	Overlap bool
	Speeds  Speeds // of the ranks' devices; work is divided in proportion
}

// Values of Plan.Stream that leave the number of blocks to be chosen.
const (
	StreamOn   = -1 // as few as necessary, but some
	StreamAuto = -2 // as few as necessary, none if possible
)

// OneRank returns the plan without any split.
func OneRank() Plan {
	return Plan{Data: 1, CFG: 1, Pipe: 1, Ring: 1, Ulysses: 1, Tensor: 1, Patches: 1, Overlap: true}
}

// key is one key of the plan syntax. set refuses values that the key does not take.
type key struct {
	name string
	set  func(p *Plan, value string) error
	get  func(p *Plan) string
}

// number returns a key whose value is a whole number.
func number(name string, at func(*Plan) *int, low, high int, purpose string) key {
	return key{name, func(p *Plan, value string) error {
		n, err := strconv.Atoi(value)
		if err != nil || n < low || n > high {
			return Refuse(name, "is %q: want a whole number from %d to %d (%s)", value, low, high, purpose)
		}
		*at(p) = n
		return nil
	}, func(p *Plan) string { return strconv.Itoa(*at(p)) }}
}

// rows returns one of the two keys of Plan.Ring, by the value of Plan.Gather that it stands for. Parse refuses both.
func rows(name string, gather bool, purpose string) key {
	k := number(name, func(p *Plan) *int { return &p.Ring }, 1, MaxRanks, purpose)
	set, get := k.set, k.get
	k.set = func(p *Plan, value string) error {
		err := set(p, value)
		p.Gather = gather && p.Ring > 1
		return err
	}
	k.get = func(p *Plan) string {
		if p.Gather != gather {
			return "1"
		}
		return get(p)
	}
	return k
}

// choice returns a key that takes one of two values.
func choice(name, off, on string, at func(*Plan) *bool) key {
	return key{name, func(p *Plan, value string) error {
		if value != off && value != on {
			return Refuse(name, "is %q: want %s or %s", value, off, on)
		}
		*at(p) = value == on
		return nil
	}, func(p *Plan) string { return map[bool]string{false: off, true: on}[*at(p)] }}
}

// speeds returns the key of Plan.Speeds.
func speeds() key {
	return key{"speeds", func(p *Plan, value string) error {
		var ok bool
		if p.Speeds, ok = ParseSpeeds(value); !ok {
			return Refuse("speeds", "is %q: want whole numbers from 1 to 100, one for each rank, as in 100:32", value)
		}
		return nil
	}, func(p *Plan) string { return p.Speeds.String() }}
}

// stream returns the key of Plan.Stream.
func stream() key {
	words := map[string]int{"off": 0, "on": StreamOn, "auto": StreamAuto}
	return key{"stream", func(p *Plan, value string) error {
		n, ok := words[value]
		if number, err := strconv.Atoi(value); err == nil && number > 0 && number <= maxStream {
			n, ok = number, true
		}
		if !ok {
			return Refuse("stream", "is %q: want on, off, auto, or how many blocks of each rank come from host memory, 1 to %d",
				value, maxStream)
		}
		p.Stream = n
		return nil
	}, func(p *Plan) string {
		for word, n := range words {
			if n == p.Stream {
				return word
			}
		}
		return strconv.Itoa(p.Stream)
	}}
}

// maxStream bounds the number of blocks in a plan.
const maxStream = 10000

func keys() []key {
	return []key{
		number("data", func(p *Plan) *int { return &p.Data }, 1, MaxRanks, "parts of the batch"),
		number("cfg", func(p *Plan) *int { return &p.CFG }, 1, MaxRanks, "groups of conditioning entries"),
		number("pipe", func(p *Plan) *int { return &p.Pipe }, 1, MaxRanks, "stages"),
		rows("ring", false, "ranks of a ring"),
		rows("gather", true, "ranks that gather keys and values"),
		number("ulysses", func(p *Plan) *int { return &p.Ulysses }, 1, MaxRanks, "ranks that exchange heads"),
		number("tensor", func(p *Plan) *int { return &p.Tensor }, 1, MaxRanks, "ranks that split weights"),
		number("patches", func(p *Plan) *int { return &p.Patches }, 1, 10000, "patches of a pipeline"),
		number("warmup", func(p *Plan) *int { return &p.Warmup }, 0, throughout, "synchronous evaluations at the start"),
		number("ranks", func(p *Plan) *int { return &p.Choose }, 1, MaxRanks, "ranks to choose a plan for"),
		choice("form", "reduce", "scatter", func(p *Plan) *bool { return &p.Scatter }),
		choice("sync", "stages", "spread", func(p *Plan) *bool { return &p.Spread }),
		choice("stale", "off", "on", func(p *Plan) *bool { return &p.Stale }),
		choice("shard", "off", "on", func(p *Plan) *bool { return &p.Shard }),
		stream(),
		choice("kv", "full", "fp8", func(p *Plan) *bool { return &p.KV8 }),
		choice("deterministic", "off", "on", func(p *Plan) *bool { return &p.Deterministic }),
		choice("overlap", "off", "on", func(p *Plan) *bool { return &p.Overlap }),
		speeds(),
	}
}

// removed says of keys that earlier versions took why they went and what to write instead (ADR 13).
func removed() map[string]string {
	return map[string]string{
		"resync": "it hardly moved the picture; use warmup=2 (or more) instead",
		"heads":  "no measurement showed a gain from heads=halves; leave heads out",
		"cut": "stages are cut by time alone; leave cut out, and where they do not fit use more stages or tensor=2 (or " +
			"more)",
	}
}

// Parse reads a plan such as "ulysses=2,cfg=2,pipe=2,patches=4,warmup=1,overlap=off". An empty text is one rank. Errors
// are *fault.Error with code plan_refused.
func Parse(text string) (Plan, error) {
	p := OneRank()
	seen := map[string]bool{}
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		key, value, ok := strings.Cut(part, "=")
		key = strings.TrimSpace(key)
		if !ok || seen[key] {
			return p, Refuse(key, "want key=value once for each key, as in ulysses=2,cfg=2; got %q", part)
		}
		seen[key] = true
		if err := p.set(key, strings.TrimSpace(value)); err != nil {
			return p, err
		}
	}
	if seen["ring"] && seen["gather"] {
		return p, Refuse("gather", "and ring both split the tokens, and keys and values either circulate or are gathered: "+
			"leave out one of them")
	}
	if p.Pipe > 1 {
		if !seen["patches"] {
			p.Patches = p.Pipe
		}
		if !seen["warmup"] {
			p.Warmup = 1
			if p.Deterministic {
				p.Warmup = throughout
			}
		}
	}
	return p, p.Possible()
}

// Possible refuses a plan that no model can run on any image. It is called before anything is queued. Every degree must
// be at most MaxRanks, so that their product does not overflow.
func (p Plan) Possible() error {
	switch given := p.degrees(); {
	case p.Choose > 0 && given != "":
		return Refuse("ranks", "has the plan chosen, so %s cannot be given: leave out one of them", given)
	case p.Stale && p.Choose == 0:
		return Refuse("stale", "says what may be chosen: add ranks=4 (or another number), or leave stale out")
	case p.Ranks() > MaxRanks:
		return Refuse("", "%s takes %d ranks, at most %d are allowed", p, p.Ranks(), MaxRanks)
	case p.Speeds != (Speeds{}) && p.Speeds.count() != p.Ranks():
		return Refuse("speeds", "are %s for %d ranks: want one for each", p.Speeds, p.Ranks())
	case p.Scatter && p.Tensor == 1:
		return Refuse("form", "is scatter with one tensor rank: add tensor=2 (or more), or leave form out")
	case p.Spread && p.Pipe == 1:
		return Refuse("sync", "is spread with one stage: add pipe=2 (or more stages), or leave sync out")
	case p.Owns() && p.Spread:
		name := "shard"
		if !p.Shard {
			name = "stream"
		}
		return Refuse(name, "is on with sync=spread: a spread evaluation runs all blocks on every stage, so every stage "+
			"needs all weights: use sync=stages, or leave %s out", name)
	case p.KV8 && p.Pipe == 1:
		return Refuse("kv", "is fp8 with one stage, which stores no keys and values: add pipe=2 (or more stages), or "+
			"leave kv out")
	case p.Deterministic && p.Tensor > 1:
		return Refuse("tensor", "is %d with deterministic=on, but partial products of %d ranks add up to other bits: use "+
			"ulysses=%d, or pipe=%d where weights do not fit", p.Tensor, p.Tensor, p.Tensor, p.Tensor)
	case p.Deterministic && p.Stale:
		return Refuse("stale", "is on with deterministic=on: leave out one of them")
	case p.Deterministic && p.Patches > 1 && p.Warmup < throughout:
		return Refuse("warmup", "is %d with deterministic=on, but patches behind it attend to keys and values of the "+
			"evaluation before, as no other plan does: use patches=1, or leave warmup out", p.Warmup)
	case p.Shard && !p.Owns() && p.Parts() == 1:
		return Refuse("shard", "is on, but no two ranks hold the same weights: add pipe=2 or ulysses=2 (or ring, "+
			"gather, cfg, data), or leave shard out")
	case p.Pipe == 1 && p.Patches > 1:
		return Refuse("patches", "is %d with one stage: add pipe=2 (or more stages), or leave patches out", p.Patches)
	}
	return nil
}

// degrees returns the keys of the plan that ranks=N excludes, empty if there are none.
func (p Plan) degrees() string {
	p.Choose, p.Stale, p.Deterministic, p.Overlap, p.Stream = 0, false, false, true, 0
	if p == OneRank() {
		return ""
	}
	return p.String()
}

func (p *Plan) set(name, value string) error {
	if reason, ok := removed()[name]; ok {
		return Refuse(name, "was removed: %s", reason)
	}
	var names []string
	for _, k := range keys() {
		if k.name == name {
			return k.set(p, value)
		}
		names = append(names, k.name)
	}
	return Refuse(name, "unknown key: want one of %s", strings.Join(names, ", "))
}

// String returns the plan in the syntax of Parse, without defaults. Parse reads it back, except for "one rank".
func (p Plan) String() string {
	var parts []string
	one := OneRank()
	if p.Pipe > 1 { // pipelines have other defaults
		one.Patches, one.Warmup = 0, -1
	}
	for _, k := range keys() {
		if v := k.get(&p); v != k.get(&one) {
			parts = append(parts, k.name+"="+v)
		}
	}
	if len(parts) == 0 {
		return "one rank"
	}
	return strings.Join(parts, ",")
}

// Ranks returns how many ranks the plan takes, or may take if it is still to be chosen.
func (p Plan) Ranks() int {
	return max(p.Choose, 1) * p.Data * p.CFG * p.Pipe * p.Ring * p.Ulysses * p.Tensor
}

// Bands returns over how many ranks the autoencoder may split an image. Sums over bands would change bits.
func (p Plan) Bands() int {
	if p.Deterministic {
		return 1
	}
	return p.Ranks()
}

// InOrder reports whether the sequence is split although keys must be attended to in its order. They are then gathered
// before every attention.
func (p Plan) InOrder() bool { return p.Deterministic && p.Ring*p.Ulysses > 1 }

// Gathers reports whether the ranks of a ring gather the rows of all before they attend to them, which they do in any
// case where these are kept or must be in order.
func (p Plan) Gathers() bool { return p.Gather && p.Pipe == 1 && !p.InOrder() }

// ringKey returns the key that says how many ranks p.Ring has.
func (p Plan) ringKey() string {
	if p.Gather {
		return "gather"
	}
	return "ring"
}

// Skips reports whether some block takes the output of an earlier one.
func Skips(spec *dit.Spec) bool {
	return slices.ContainsFunc(spec.Blocks, func(b dit.BlockSpec) bool { return b.Skip >= 0 })
}

// MaxStages returns the largest number of stages that the blocks of a model can be cut into.
func MaxStages(spec *dit.Spec) int {
	if Skips(spec) {
		return max(1, len(spec.Blocks)/2)
	}
	return len(spec.Blocks)
}

// CheckModel refuses a plan that cannot run a model on any image. The error names the field, the rule and an
// alternative. It reads no weights.
func (p Plan) CheckModel(spec *dit.Spec) error {
	if spec.Whole {
		return p.checkWhole(spec)
	}
	switch {
	case p.Pipe > MaxStages(spec):
		return Refuse("pipe", "is %d, but the %d blocks of %s make at most %d stages: use pipe=%d",
			p.Pipe, len(spec.Blocks), spec.Family, MaxStages(spec), MaxStages(spec))
	case p.Stream > len(spec.Blocks):
		return Refuse("stream", "is %d, but %s has %d blocks: use stream=on", p.Stream, spec.Family, len(spec.Blocks))
	case spec.Sound.Width > 0 && p.Tensor > 1:
		return Refuse("tensor", "is %d, but the heads of %s, which has a stream for the sound too, are not split: use "+
			"ulysses=%d", p.Tensor, spec.Family, p.Tensor)
	case spec.Sound.Width > 0 && p.Patches > 1:
		return Refuse("patches", "is %d, but the sound of %s attends to the whole video in every block, not to a patch: use "+
			"patches=1", p.Patches, spec.Family)
	case p.Tensor > spec.Groups():
		return Refuse("tensor", "is %d, but the model has %d heads: use tensor=%d", p.Tensor, spec.Groups(), spec.Groups())
	}
	return nil
}

// checkWhole refuses what divides rows, heads, blocks or weights.
func (p Plan) checkWhole(spec *dit.Spec) error {
	refuse := func(key, value string) error {
		return Refuse(key, "is %s, but %s is a network of one piece, whose pixels, heads, layers and weights are not split: "+
			"use cfg=2 for its two sides, data=2 (or more) for the pictures of a batch, or leave %s out", value, spec.Family,
			key)
	}
	for _, k := range keys() {
		switch k.name {
		case "pipe", "ring", "gather", "ulysses", "tensor", "shard":
			if one := OneRank(); k.get(&p) != k.get(&one) {
				return refuse(k.name, k.get(&p))
			}
		}
	}
	return nil
}

// Check refuses a plan that cannot run a request of this shape. The error names the field, the rule and an alternative.
// It reads no weights.
func (p Plan) Check(spec *dit.Spec, batch, entries, imageTokens int) error {
	if err := p.Possible(); err != nil {
		return err
	}
	if err := p.CheckModel(spec); err != nil {
		return err
	}
	switch {
	case p.Data > batch:
		return Refuse("data", "is %d, but the batch has %d pictures: use data=%d", p.Data, batch, batch)
	case p.CFG > entries:
		return Refuse("cfg", "is %d, but %d conditioning entries are evaluated: use cfg=%d", p.CFG, entries, entries)
	case p.Ring*p.Ulysses > imageTokens:
		return Refuse("ulysses", "%s*ulysses is %d, but the picture has %d tokens: use ulysses=%d", p.ringKey(),
			p.Ring*p.Ulysses, imageTokens, imageTokens)
	case p.Spread && p.Pipe*p.Ring*p.Ulysses > imageTokens:
		return Refuse("sync", "is spread over %d ranks, but the picture has %d tokens: use sync=stages",
			p.Pipe*p.Ring*p.Ulysses, imageTokens)
	case p.Patches > imageTokens:
		return Refuse("patches", "is %d, but the picture has %d tokens: use patches=%d", p.Patches, imageTokens,
			min(imageTokens, p.Pipe))
	}
	return nil
}

// Refuse returns an error with code PlanRefused about a key of the plan, or about the whole plan if key is empty.
func Refuse(key, format string, args ...any) *fault.Error {
	field := "plan"
	if key != "" {
		field += "." + key
	}
	return fault.Named(fault.PlanRefused, field, format, args...)
}

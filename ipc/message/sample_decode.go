package message

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"

	"patchbay/array"
	"patchbay/fault"
	"patchbay/ipc/wire"
	"patchbay/models/dit"
	"patchbay/node/pyjson"
	"patchbay/node/value"
	"patchbay/parallel/plan"
	"patchbay/parallel/request"
)

// ParseSample reads and checks the body of sample, and generates an id if there is none. With forward, large tensors
// are left to the worker that will receive them, and Built stays nil. Errors have Input set to the path of the field.
func ParseSample(o *pyjson.Object, forward bool) (*SampleRequest, *fault.Error) {
	q := &SampleRequest{}
	if err := BindStrict(o, q); err != nil {
		return nil, wire.BadRequest(err)
	}
	if q.ID == "" {
		q.ID = wire.NewID()
	}
	if !wire.ValidID(q.ID) {
		return nil, wire.BadRequest(wire.BadField("id", "%q: an id is 1 to 64 of A-Z a-z 0-9 _ -", wire.Shown(q.ID)))
	}
	built, err := q.Lower(TensorReader{forward})
	if err != nil {
		return nil, wire.BadRequest(err)
	}
	if !forward {
		q.Built = built
	}
	return q, nil
}

// BindStrict is wire.Bind that also returns an error for fields that dst does not have.
func BindStrict(o *pyjson.Object, dst any) error {
	if err := wire.Bind(o, dst); err != nil {
		return err
	}
	return known(o, reflect.TypeOf(dst).Elem())
}

// known returns an error for a field that a type does not have, at any depth.
func known(o *pyjson.Object, t reflect.Type) error {
	if bad := wire.UnknownField(o, t); bad != "" {
		return wire.BadField(bad, "is not known here and would be passed over: leave it out")
	}
	return nil
}

// Lower converts the request to the form that package node takes.
func (q *SampleRequest) Lower(reader TensorReader) (*value.ClientRequest, error) {
	out := &value.ClientRequest{Options: q.Sampler.Options}
	var err error
	if out.Model, err = q.Model.Resolve(reader); err != nil {
		return nil, err
	}
	for i, n := range q.Model.Nets {
		if n.Hint == nil {
			return nil, wire.BadField(fmt.Sprintf("model.nets[%d].hint", i), "is missing")
		}
	}
	r := &out.Request
	r.Sampler, r.Seed, r.Plan, r.NoiseDraws = q.Sampler.Name, q.Seed, q.Plan, q.NoiseDraws
	if err := q.plain(r); err != nil {
		return nil, err
	}
	if s := q.Sampling; s != nil {
		out.TimeLine = &value.TimeLine{Bases: s.Bases, Shift: s.Shift, Multiplier: s.Multiplier}
	}
	if _, r.Sigmas, err = reader.values("sigmas", q.Sigmas, 1); err != nil {
		return nil, err
	}
	if r.Latent, err = reader.latent("latent", q.Latent, 5); err != nil {
		return nil, err
	}
	if q.Noise != nil {
		if r.Noise, err = reader.latent("noise", q.Noise, 5); err != nil {
			return nil, err
		}
		if !slices.Equal(r.Noise.Shape(), r.Latent.Shape()) {
			return nil, wire.BadField("noise", "has shape %v, the latent %v", q.Noise.Shape, q.Latent.Shape)
		}
		if r.NoiseDraws == nil {
			r.NoiseDraws = []int{r.Noise.Len()}
		}
	}
	if q.Mask != nil {
		if r.Mask, err = reader.latent("mask", q.Mask, 5); err != nil {
			return nil, err
		}
	}
	if err := q.guide(r, reader); err != nil || q.Norm == nil {
		return out, err
	}
	if !(*q.Norm >= 0 && *q.Norm <= math.MaxFloat32) || q.Dual != nil {
		return nil, wire.BadField("cfg_norm", "%v: want a strength of at least 0, and no dual guidance", *q.Norm)
	}
	strength := float32(*q.Norm)
	r.Guider.Norm = &strength
	return out, nil
}

// Resolve converts the reference to the form that package node takes, which checks the weights that patches change.
func (m *ModelRef) Resolve(reader TensorReader) (value.ModelFile, error) {
	out := value.ModelFile{Name: m.File, Fingerprint: m.Fingerprint}
	for i, p := range m.Patches {
		path := fmt.Sprintf("model.patches[%d].", i)
		switch {
		case p.Key == "":
			return out, wire.BadField(path+"key", "is missing")
		case !slices.Contains([]string{"lora", "diff", "set"}, p.Adapter):
			return out, wire.BadField(path+"adapter", "%q: want lora, diff (of a bias) or set (of a norm)",
				wire.Shown(p.Adapter))
		case p.Adapter == "lora" && (p.Tensors.Up == nil || p.Tensors.Down == nil || p.Tensors.Value != nil):
			return out, wire.BadField(path+"tensors", "a lora has up and down, and no value")
		case p.Adapter != "lora" && (p.Tensors.Value == nil || p.Tensors.Up != nil || p.Tensors.Down != nil):
			return out, wire.BadField(path+"tensors", "%s has a value, and neither up nor down", p.Adapter)
		}
		low := value.Patch{
			Key: p.Key, Offset: p.Offset, Strength: or(p.Strength, 1), Alpha: p.Tensors.Alpha, Set: p.Adapter == "set",
		}
		take := func(t *wire.Tensor) *array.Tensor {
			if t == nil || reader.forward {
				return nil
			}
			low.ID += fmt.Sprintf("%s%x", t.DType, sha256.Sum256(t.Data))
			return &t.Tensor
		}
		low.Up, low.Down, low.Value = take(p.Tensors.Up), take(p.Tensors.Down), take(p.Tensors.Value)
		out.Patches = append(out.Patches, low)
	}
	for i, n := range m.Nets {
		path := fmt.Sprintf("model.nets[%d].", i)
		net := value.NetFile{Name: n.File, Fingerprint: n.Fingerprint, Strength: float32(or(n.Strength, 1))}
		if n.File == "" {
			return out, wire.BadField(path+"file", "is missing")
		}
		if n.Hint != nil {
			dims, err := 4, error(nil)
			if len(n.Hint.Shape) == 3 { // states of an image encoder
				dims = 3
			}
			if net.Hint, err = reader.latent(path+"hint", n.Hint, dims); err != nil {
				return out, err
			}
		}
		out.Nets = append(out.Nets, net)
	}
	return out, nil
}

// or returns the number of an optional field.
func or(p *float64, preset float64) float64 {
	if p == nil {
		return preset
	}
	return *p
}

// plain checks and copies the fields that are not tensors.
func (q *SampleRequest) plain(r *request.Request) error {
	switch {
	case q.Model.File == "":
		return wire.BadField("model.file", "is missing")
	case q.Sampler.Name == "":
		return wire.BadField("sampler.name", "is missing")
	case q.Sampler.MaskNoiseFromSeed && q.Sampler.Name != "euler" && q.Sampler.Name != "ddim":
		return wire.BadField("sampler.mask_noise_from_seed", "goes with euler only, not with %s", q.Sampler.Name)
	case q.Sampling != nil && len(q.Sampling.Bases) == 0:
		return wire.BadField("sampling.bases", "is missing; leave sampling out to take that of the model file")
	case !slices.Contains([]string{"", "none", "latent", "jpeg"}, q.Preview):
		return wire.BadField("preview", "%q: want none, latent or jpeg", wire.Shown(q.Preview))
	}
	for i, n := range q.NoiseDraws {
		if n < 1 {
			return wire.BadField(fmt.Sprintf("noise_draws[%d]", i), "%d: want the number of values of a draw", n)
		}
	}
	if q.Sampler.MaskNoiseFromSeed {
		r.Sampler = "ddim"
	}
	if _, err := plan.Parse(q.Plan); err != nil {
		return wire.BadField("plan", "%v", err)
	}
	r.Preview = q.Preview == "latent" || q.Preview == "jpeg"
	var err error
	r.Cache, err = q.Cache.lower()
	return err
}

// lower converts the cache settings to those of package parallel, which checks the numbers.
func (c *CacheRef) lower() (*request.Cache, error) {
	if c == nil {
		return nil, nil
	}
	rule := slices.Index(request.CacheRules(), c.Rule)
	switch {
	case rule < 0:
		return nil, wire.BadField("cache.rule", "%q: want %s", wire.Shown(c.Rule), strings.Join(request.CacheRules(), " or "))
	case c.Threshold == nil:
		return nil, wire.BadField("cache.threshold", "is missing")
	}
	return &request.Cache{
		Rule: request.CacheRule(rule), Threshold: float32(*c.Threshold), Start: or(c.Start, 0), End: or(c.End, 1),
		Verbose: c.Verbose,
	}, nil
}

// guide fills in the guider and the branches of r.
func (q *SampleRequest) guide(r *request.Request, reader TensorReader) error {
	cfg := or(q.CFG, 1)
	positive, err := q.branch("conds.positive", q.Conds.Positive, reader)
	if err != nil {
		return err
	}
	r.Branches = []request.Branch{positive}
	if q.Conds.Negative == nil {
		if q.Dual != nil {
			return wire.BadField("conds.negative", "is missing; dual guidance takes it")
		}
		if cfg != 1 {
			return wire.BadField("conds.negative", "is missing; without it cfg must be 1, not %v", cfg)
		}
		r.Guider = request.Guider{Kind: request.GuideBasic}
		return nil
	}
	r.Guider = request.Guider{Kind: request.GuideCFG, CFG: float32(cfg), NoShortcut: q.CFG1 != nil && !*q.CFG1}
	if d := q.Dual; d != nil {
		middle, err := q.branch("dual.middle", d.Middle, reader)
		if err != nil {
			return err
		}
		r.Branches = append(r.Branches, middle)
		r.Guider.Kind, r.Guider.CFG2, r.Guider.Nested = request.GuideDual, float32(d.CFG2), d.Nested
	}
	negative, err := q.branch("conds.negative", *q.Conds.Negative, reader)
	r.Branches = append(r.Branches, negative)
	return err
}

func (q *SampleRequest) branch(path string, list []CondRef, reader TensorReader) (request.Branch, error) {
	out := request.Branch{Name: path[strings.LastIndexByte(path, '.')+1:]}
	for i := range list {
		e, err := list[i].entry(fmt.Sprintf("%s[%d]", path, i), reader)
		if err != nil {
			return out, err
		}
		out.Entries = append(out.Entries, e)
	}
	return out, nil
}

// TensorReader reads the tensors of a request. With forward, it skips the data of large ones, which another process
// will read.
type TensorReader struct{ forward bool }

// leftToWorker reports whether only dtype and shape of a tensor are checked here.
func (reader TensorReader) leftToWorker(t *wire.Tensor) bool {
	return reader.forward && len(t.Data) >= wire.BulkBytes
}

// always is ComfyUI's sigma for 0 percent of a discrete model: it is above every sigma.
const always = 999999999.9

func (c *CondRef) entry(path string, reader TensorReader) (request.Entry, error) {
	e := request.Entry{Strength: float32(or(c.Strength, 1)), MaskStrength: float32(or(c.MaskStrength, 1))}
	if c.TimestepStart != nil || c.TimestepEnd != nil {
		e.Ranged, e.SigmaStart, e.SigmaEnd = true, float32(or(c.TimestepStart, always)), float32(or(c.TimestepEnd, 0))
	}
	if c.Area != nil {
		if len(c.Area) != 4 {
			return e, wire.BadField(path+".area", "has %d numbers: want [height, width, y, x] in latent pixels", len(c.Area))
		}
		e.Area = request.Area{H: c.Area[0], W: c.Area[1], Y: c.Area[2], X: c.Area[3]}
	}
	if c.Mask != nil {
		var err error
		if e.Mask, err = reader.latent(path+".mask", c.Mask, 3); err != nil {
			return e, err
		}
	}
	for i, t := range c.References {
		at := fmt.Sprintf("%s.references[%d]", path, i)
		l, err := reader.latent(at, t, 4)
		if err != nil {
			return e, err
		}
		if l.B != 1 {
			return e, wire.BadField(at, "has %d pictures: want one", l.B)
		}
		e.References = append(e.References, dit.Reference{Y: l.Y, X: l.X, Data: l.Data})
	}
	e.Method, e.Slots = c.ReferencesMethod, c.ReferencesSlots
	for _, b := range c.Biases {
		e.Biases = append(e.Biases, dit.Bias{Rows: dit.Range{Start: b.Start, End: b.End}, Value: float32(b.Value)})
	}
	for i, add := range c.Control {
		_, rows, err := reader.values(fmt.Sprintf("%s.control[%d].rows", path, i), add.Rows, 3)
		if err != nil {
			return e, err
		}
		e.Residuals = append(e.Residuals, request.Residual{Blocks: add.Blocks, Rows: rows})
	}
	if c.ModelConds["c_crossattn"] == nil {
		return e, wire.BadField(path+".model_conds.c_crossattn", "is missing")
	}
	for _, key := range slices.Sorted(maps.Keys(c.ModelConds)) {
		if t := c.ModelConds[key]; t != nil {
			if err := setCond(&e.Entry, key, path+".model_conds."+key, t, reader); err != nil {
				return e, err
			}
		}
	}
	for key, rows := range map[string]int{
		"attention_mask": e.Context.Rows, "text_embedding_mask": e.Context.Rows,
		"text_embedding_mask_t5": e.Context2.Rows,
	} {
		if t := c.ModelConds[key]; t != nil && !slices.Equal(t.Shape, []int{1, rows}) {
			return e, wire.BadField(path+".model_conds."+key,
				"has shape %v: want [1, %d], one value per row of its text", t.Shape, rows)
		}
	}
	return e, nil
}

// setCond stores one value of extra_conds in e.
func setCond(e *dit.Entry, key, path string, t *wire.Tensor, reader TensorReader) error {
	dims := map[string]int{"c_crossattn": 3, "encoder_hidden_states_t5": 3, "guidance": 1, "c_concat": 4}[key]
	if key == "attention_mask" || key == "text_embedding_mask" || key == "text_embedding_mask_t5" {
		n, err := reader.prefix(path, t)
		if key == "text_embedding_mask_t5" {
			e.Context2Len = n
		} else {
			e.ContextLen = n
		}
		return err
	}
	shape, data, err := reader.values(path, t, dims)
	if err != nil {
		return err
	}
	if dims != 1 && shape[0] != 1 {
		return wire.BadField(path, "has shape %v: entries have batch 1, they are repeated here", shape)
	}
	switch key {
	case "c_crossattn":
		e.Context = dit.Array{Rows: shape[1], Cols: shape[2], Data: data}
	case "encoder_hidden_states_t5":
		e.Context2 = dit.Array{Rows: shape[1], Cols: shape[2], Data: data}
	case "c_concat":
		e.Concat = dit.Reference{Y: shape[2], X: shape[3], Data: data}
	case "y":
		e.Pooled = data
	case "guidance":
		if shape[0] != 1 {
			return wire.BadField(path, "has %d values: want one", shape[0])
		}
		if data != nil {
			e.Guidance = &data[0]
		}
	case "image_meta_size", "c_size":
		e.Size = append(data, e.Size...)
	case "c_ar": // sorts before c_size, but belongs after it
		e.Size = append(e.Size, data...)
	default:
		return wire.BadField(path, "is not known here; the keys are c_crossattn, c_concat, y, guidance, attention_mask, "+
			"text_embedding_mask, encoder_hidden_states_t5, text_embedding_mask_t5, image_meta_size, c_size, c_ar")
	}
	return nil
}

// prefix reads a mask [1, Lt] of ones followed by zeros and returns the number of ones.
func (reader TensorReader) prefix(path string, t *wire.Tensor) (int, error) {
	var ones []bool
	if reader.leftToWorker(t) {
		return 0, nil
	}
	if t.DType == "i64" || t.DType == "u8" {
		size := array.DTypeSize(t.DType)
		for i := 0; i+size <= len(t.Data); i += size {
			ones = append(ones, slices.ContainsFunc(t.Data[i:i+size], func(b byte) bool { return b != 0 }))
		}
	} else {
		_, data, err := reader.values(path, t, 0)
		if err != nil {
			return 0, err
		}
		for _, v := range data {
			ones = append(ones, v != 0)
		}
	}
	n := slices.Index(append(ones, false), false)
	if slices.Contains(ones[n:], true) || n == 0 {
		return 0, wire.BadField(path, "is not ones followed by zeros: other masks are not taken")
	}
	return n, nil
}

// values returns the shape and the numbers of a float tensor, nil numbers for one that is left to the worker. dims 0
// allows any number of dimensions from 1.
func (reader TensorReader) values(path string, t *wire.Tensor, dims int) ([]int, []float32, error) {
	if t == nil {
		return nil, nil, wire.BadField(path, "is missing")
	}
	if len(t.Shape) == 0 || (dims > 0 && len(t.Shape) != dims) {
		return nil, nil, wire.BadField(path, "has shape %v: want %d dimensions", t.Shape, max(dims, 1))
	}
	if reader.leftToWorker(t) {
		if t.DType != "f32" && t.DType != "f16" && t.DType != "bf16" {
			return nil, nil, wire.BadField(path, "tensor of dtype %q: f32, f16 and bf16 are taken", wire.Shown(t.DType))
		}
		return t.Shape, nil, nil
	}
	data, err := value.F32(&t.Tensor)
	if err != nil {
		return nil, nil, wire.BadField(path, "%v", err)
	}
	for i, v := range data {
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return nil, nil, wire.BadField(path, "value %d is %v: want finite numbers", i, v)
		}
	}
	return t.Shape, data, nil
}

// latent reads [B, C, Y, X]; dims 3 means [B, Y, X] as one channel, dims 5 also allows [B, C, layers, Y, X].
func (reader TensorReader) latent(path string, t *wire.Tensor, dims int) (request.Latent, error) {
	if dims == 5 && (t == nil || len(t.Shape) != dims) {
		dims = 4
	}
	s, data, err := reader.values(path, t, dims)
	if err != nil {
		return request.Latent{}, err
	}
	if slices.Contains(s, 0) {
		return request.Latent{}, wire.BadField(path, "has shape %v: it is empty", s)
	}
	if dims == 3 {
		s = []int{s[0], 1, s[1], s[2]}
	}
	l, _ := request.LatentOf(s, data)
	return l, nil
}

// LatentTensor is the inverse of TensorReader.latent for the first items of the batch; items 0 means all.
func LatentTensor(l request.Latent, items int) *wire.Tensor {
	if items == 0 || items > l.B {
		items = l.B
	}
	l.B = items
	return &wire.Tensor{Tensor: *array.New(l.Data[:l.Len()], l.Shape()...)}
}

package ipc

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"

	"patchbay/models/dit"
	"patchbay/node/pyjson"
	"patchbay/node/value"
	"patchbay/parallel"
)

// parseSample reads the body of sample. With forward large tensors are left to the worker that gets them. Errors have Input set to the path of the field.
func parseSample(o *pyjson.Object, forward bool) (*SampleRequest, *Error) {
	q := &SampleRequest{}
	if err := bindStrict(o, q); err != nil {
		return nil, badRequest(err)
	}
	if q.ID == "" {
		q.ID = NewJobID()
	}
	if !validID(q.ID) {
		return nil, badRequest(badField("id", "%q: an id is 1 to 64 of A-Z a-z 0-9 _ -", shown(q.ID)))
	}
	built, err := q.request(numbers{forward})
	if err != nil {
		return nil, badRequest(err)
	}
	if !forward {
		q.built = built
	}
	return q, nil
}

// bindStrict is Bind that refuses fields that dst does not have.
func bindStrict(o *pyjson.Object, dst any) error {
	if err := Bind(o, dst); err != nil {
		return err
	}
	if bad := unknownField(o, reflect.TypeOf(dst).Elem()); bad != "" {
		return badField(bad, "is not known here and would be passed over: leave it out")
	}
	return nil
}

// request is the message as package node takes it.
func (q *SampleRequest) request(look numbers) (*value.HostRequest, error) {
	out := &value.HostRequest{Options: q.Sampler.Options}
	var err error
	if out.Model, err = q.Model.file(look); err != nil {
		return nil, err
	}
	r := &out.Request
	r.Sampler, r.Seed, r.Plan, r.NoiseDraws = q.Sampler.Name, q.Seed, q.Plan, q.NoiseDraws
	if err := q.plain(r); err != nil {
		return nil, err
	}
	if s := q.Sampling; s != nil {
		out.TimeLine = &value.TimeLine{Bases: s.Bases, Shift: s.Shift, Multiplier: s.Multiplier}
	}
	if _, r.Sigmas, err = look.values("sigmas", q.Sigmas, 1); err != nil {
		return nil, err
	}
	if r.Latent, err = look.latent("latent", q.Latent, 4); err != nil {
		return nil, err
	}
	if q.Noise != nil {
		if r.Noise, err = look.latent("noise", q.Noise, 4); err != nil {
			return nil, err
		}
		if a, b := r.Noise, r.Latent; a.B != b.B || a.C != b.C || a.Y != b.Y || a.X != b.X {
			return nil, badField("noise", "has shape %v, the latent %v", q.Noise.Shape, q.Latent.Shape)
		}
		if r.NoiseDraws == nil {
			r.NoiseDraws = []int{r.Noise.Len()}
		}
	}
	if q.Mask != nil {
		if r.Mask, err = look.latent("mask", q.Mask, 4); err != nil {
			return nil, err
		}
	}
	return out, q.guide(r, look)
}

// file is the model as package node takes it. What the patches add to is looked at there.
func (m *ModelRef) file(look numbers) (value.ModelFile, error) {
	out := value.ModelFile{Name: m.File, Fingerprint: m.Fingerprint}
	for i, p := range m.Patches {
		path := fmt.Sprintf("model.patches[%d].", i)
		switch {
		case p.Key == "":
			return out, badField(path+"key", "is missing")
		case p.Adapter != "lora":
			return out, badField(path+"adapter", "%q: lora is the only one that is added without changing the weights", shown(p.Adapter))
		case p.Tensors.Up == nil || p.Tensors.Down == nil:
			return out, badField(path+"tensors", "lacks up or down")
		case p.Strength != nil && !finite(*p.Strength) || p.Tensors.Alpha != nil && !finite(*p.Tensors.Alpha):
			return out, badField(path+"strength", "strength and alpha are finite numbers")
		}
		low := value.Patch{Key: p.Key, Offset: p.Offset, Strength: 1, Alpha: p.Tensors.Alpha}
		if p.Strength != nil {
			low.Strength = *p.Strength
		}
		if !look.forward {
			up, down := p.Tensors.Up, p.Tensors.Down
			low.Up, low.Down = &value.Tensor{DType: up.DType, Shape: up.Shape, Data: up.Data}, &value.Tensor{DType: down.DType, Shape: down.Shape, Data: down.Data}
			low.ID = up.DType + up.name() + down.DType + down.name()
		}
		out.Patches = append(out.Patches, low)
	}
	return out, nil
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// plain checks and copies what is no tensor.
func (q *SampleRequest) plain(r *parallel.Request) error {
	switch {
	case q.Model.File == "":
		return badField("model.file", "is missing")
	case q.Sampler.Name == "":
		return badField("sampler.name", "is missing")
	case q.Sampler.MaskNoiseFromSeed && q.Sampler.Name != "euler" && q.Sampler.Name != "ddim":
		return badField("sampler.mask_noise_from_seed", "goes with euler only, not with %s", q.Sampler.Name)
	case q.Sampling != nil && len(q.Sampling.Bases) == 0:
		return badField("sampling.bases", "is missing; leave sampling out to take that of the model file")
	case !slices.Contains([]string{"", "none", "latent", "jpeg"}, q.Preview):
		return badField("preview", "%q: want none, latent or jpeg", shown(q.Preview))
	}
	for i, n := range q.NoiseDraws {
		if n < 1 {
			return badField(fmt.Sprintf("noise_draws[%d]", i), "%d: want the number of values of a draw", n)
		}
	}
	if q.Sampler.MaskNoiseFromSeed {
		r.Sampler = "ddim"
	}
	if _, err := parallel.ParsePlan(q.Plan); err != nil {
		return badField("plan", "%v", err)
	}
	r.Preview = q.Preview == "latent" || q.Preview == "jpeg"
	return nil
}

// guide fills in guider and branches.
func (q *SampleRequest) guide(r *parallel.Request, look numbers) error {
	cfg := 1.0
	if q.CFG != nil {
		cfg = *q.CFG
	}
	positive, err := q.branch("positive", q.Conds.Positive, look)
	if err != nil {
		return err
	}
	r.Branches = []parallel.Branch{positive}
	if q.Conds.Negative == nil {
		if cfg != 1 {
			return badField("conds.negative", "is missing; without it cfg must be 1, not %v", cfg)
		}
		r.Guider = parallel.Guider{Kind: parallel.GuideBasic}
		return nil
	}
	negative, err := q.branch("negative", *q.Conds.Negative, look)
	r.Branches = append(r.Branches, negative)
	r.Guider = parallel.Guider{Kind: parallel.GuideCFG, CFG: float32(cfg), NoShortcut: q.CFG1 != nil && !*q.CFG1}
	return err
}

func (q *SampleRequest) branch(name string, list []CondRef, look numbers) (parallel.Branch, error) {
	out := parallel.Branch{Name: name}
	for i := range list {
		e, err := list[i].entry(fmt.Sprintf("conds.%s[%d]", name, i), look)
		if err != nil {
			return out, err
		}
		out.Entries = append(out.Entries, e)
	}
	return out, nil
}

// numbers reads the tensors of a request. With forward those are passed over that another process has, or is to read.
type numbers struct{ forward bool }

// away tells whether only dtype and shape of a tensor are looked at.
func (look numbers) away(t *Tensor) bool {
	return look.forward && (t.Data == nil && t.Hash != "" || len(t.Data) >= bulkBytes)
}

// always is ComfyUI's sigma at 0 percent of a discrete model: above every sigma.
const always = 999999999.9

func (c *CondRef) entry(path string, look numbers) (parallel.Entry, error) {
	or := func(p *float64, preset float64) float32 {
		if p == nil {
			return float32(preset)
		}
		return float32(*p)
	}
	e := parallel.Entry{Strength: or(c.Strength, 1), MaskStrength: or(c.MaskStrength, 1)}
	if c.TimestepStart != nil || c.TimestepEnd != nil {
		e.Ranged, e.SigmaStart, e.SigmaEnd = true, or(c.TimestepStart, always), or(c.TimestepEnd, 0)
	}
	if c.Area != nil {
		if len(c.Area) != 4 {
			return e, badField(path+".area", "has %d numbers: want [height, width, y, x] in latent pixels", len(c.Area))
		}
		e.Area = parallel.Area{H: c.Area[0], W: c.Area[1], Y: c.Area[2], X: c.Area[3]}
	}
	if c.Mask != nil {
		var err error
		if e.Mask, err = look.latent(path+".mask", c.Mask, 3); err != nil {
			return e, err
		}
	}
	if c.ModelConds["c_crossattn"] == nil {
		return e, badField(path+".model_conds.c_crossattn", "is missing")
	}
	for _, key := range slices.Sorted(maps.Keys(c.ModelConds)) {
		if t := c.ModelConds[key]; t != nil {
			if err := setCond(&e.Entry, key, path+".model_conds."+key, t, look); err != nil {
				return e, err
			}
		}
	}
	return e, nil
}

// setCond takes one value of extra_conds.
func setCond(e *dit.Entry, key, path string, t *Tensor, look numbers) error {
	dims := map[string]int{"c_crossattn": 3, "encoder_hidden_states_t5": 3, "guidance": 1}[key]
	if key == "attention_mask" || key == "text_embedding_mask" || key == "text_embedding_mask_t5" {
		n, err := look.prefix(path, t)
		if key == "text_embedding_mask_t5" {
			e.Context2Len = n
		} else {
			e.ContextLen = n
		}
		return err
	}
	shape, data, err := look.values(path, t, dims)
	if err != nil {
		return err
	}
	if dims != 1 && shape[0] != 1 {
		return badField(path, "has shape %v: entries have batch 1, they are repeated here", shape)
	}
	switch key {
	case "c_crossattn":
		e.Context = dit.Array{Rows: shape[1], Cols: shape[2], Data: data}
	case "encoder_hidden_states_t5":
		e.Context2 = dit.Array{Rows: shape[1], Cols: shape[2], Data: data}
	case "y":
		e.Pooled = data
	case "guidance":
		if shape[0] != 1 {
			return badField(path, "has %d values: want one", shape[0])
		}
		if data != nil {
			e.Guidance = &data[0]
		}
	case "image_meta_size", "c_size":
		e.Size = append(data, e.Size...)
	case "c_ar": // sorted before c_size, kept behind it
		e.Size = append(e.Size, data...)
	default:
		return badField(path, "is not known here; the keys are c_crossattn, y, guidance, attention_mask, text_embedding_mask, encoder_hidden_states_t5, text_embedding_mask_t5, image_meta_size, c_size, c_ar")
	}
	return nil
}

// prefix reads a mask [1, Lt] of ones and then zeros, and returns the number of ones.
func (look numbers) prefix(path string, t *Tensor) (int, error) {
	var ones []bool
	if look.away(t) {
		return 0, nil
	}
	if t.DType == "i64" || t.DType == "u8" {
		size := dtypeSize(t.DType)
		for i := 0; i+size <= len(t.Data); i += size {
			ones = append(ones, t.Data[i] != 0)
		}
	} else {
		_, data, err := look.values(path, t, 0)
		if err != nil {
			return 0, err
		}
		for _, v := range data {
			ones = append(ones, v != 0)
		}
	}
	n := slices.Index(append(ones, false), false)
	if slices.Contains(ones[n:], true) || n == 0 {
		return 0, badField(path, "is not ones followed by zeros: other masks are not taken")
	}
	return n, nil
}

// values returns the numbers of a tensor of floats. dims 0: any number of dimensions but none.
func (look numbers) values(path string, t *Tensor, dims int) ([]int, []float32, error) {
	if t == nil {
		return nil, nil, badField(path, "is missing")
	}
	if len(t.Shape) == 0 || (dims > 0 && len(t.Shape) != dims) {
		return nil, nil, badField(path, "has shape %v: want %d dimensions", t.Shape, max(dims, 1))
	}
	if look.away(t) {
		if t.DType != "f32" && t.DType != "f16" && t.DType != "bf16" {
			return nil, nil, badField(path, "tensor of dtype %q: f32, f16 and bf16 are taken", shown(t.DType))
		}
		return t.Shape, nil, nil
	}
	data, err := (&value.Tensor{DType: t.DType, Shape: t.Shape, Data: t.Data}).F32()
	if err != nil {
		return nil, nil, badField(path, "%v", err)
	}
	for i, v := range data {
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return nil, nil, badField(path, "value %d is %v: want finite numbers", i, v)
		}
	}
	return t.Shape, data, nil
}

// latent reads [B, C, Y, X], or with dims 3 [B, Y, X] as one channel.
func (look numbers) latent(path string, t *Tensor, dims int) (parallel.Latent, error) {
	s, data, err := look.values(path, t, dims)
	if err != nil {
		return parallel.Latent{}, err
	}
	if slices.Contains(s, 0) {
		return parallel.Latent{}, badField(path, "has shape %v: it is empty", s)
	}
	if dims == 3 {
		s = []int{s[0], 1, s[1], s[2]}
	}
	return parallel.Latent{B: s[0], C: s[1], Y: s[2], X: s[3], Data: data}, nil
}

// latentTensor is the inverse of latent. items 0: all.
func latentTensor(l parallel.Latent, items int) *Tensor {
	if items == 0 || items > l.B {
		items = l.B
	}
	t := value.NewTensor(l.Data[:items*l.C*l.Y*l.X], items, l.C, l.Y, l.X)
	return &Tensor{DType: t.DType, Shape: t.Shape, Data: t.Data}
}

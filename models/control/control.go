// Package control implements control nets: for FLUX those by InstantX and others (including union and inpainting nets),
// XLabs and MistoLine, for SD3 by diffusers and Stability AI, for Qwen-Image by InstantX and Fun nets, for HunyuanDiT
// by Tencent. Such a net consists of the first layers of a model of its family, or similar ones: a few blocks without a
// head. It adds a hint to its image tokens and outputs its state after each block through a linear layer. Some borrow
// weights from the model that they run beside.
//
// control.go recognizes files, model.go computes, and picture.go has the layers of nets that read a picture directly.
// Differences between families are in family.Control. patch.go implements model patches, which are not nets of their
// own but layers behind every block of the base model, such as DiffSynth's.
//
// Facts that have caused bugs: the hint goes through the latent format of the base model, but for SD3 without its
// shift; SD3's nets get a pooled vector of zeros; the type of a union net is an extra row before the text, at the
// position of its first row, and without a type there is no such row; SD3's last block keeps its text, unlike in a
// whole model.
package control

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"patchbay/engine"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/models/latent"
	"patchbay/models/weights"
)

// Net describes a control net file before its weights are read.
type Net struct {
	Family string        // of the base model
	Spec   dit.Spec      // the family's, with the blocks of the net
	Hint   int           // channels of the hint: those of a latent, perhaps a mask, and perhaps another latent (Fills)
	Modes  int           // number of types of a union net, 0 for other nets
	Format latent.Format // latent format of the hint in files and VAEs
	// Load loads the part in held with ops: slices for tensor groups, else everything. The set from which the net was
	// opened must still be open. The result is a *Model, or a *Patch.
	Load func(ops engine.Ops, held dit.Held) (dit.Model, error)
	kind *family.Control
	// Patch is set for a patch on a model, as opposed to a control net on a conditioning.
	Patch bool
	// ReadsPicture is set for a net that computes its hint from a picture with layers of its own (Picture) instead of
	// a VAE.
	ReadsPicture bool
	// The pixels v of a picture are encoded as Factor*v + Offset.
	Factor, Offset float32
	act            engine.Act // activation of the outputs
	// Borrows is set for a net that needs weights of its model to be loaded (Beside).
	Borrows  bool
	Borrowed int64 // bytes of borrowed weights, if they are present
	Lacks    int64 // parameters to be borrowed, if they are missing
	Root     bool  // the effective strength is the square root of the given one
}

// Takes reports whether the net borrows the tensor of that name from its model.
func (n *Net) Takes(name string) bool { return n.kind.Takes(name) }

// Masked reports whether the hint has a mask after its latent.
func (n *Net) Masked() bool { return n.Hint > n.Spec.Channels }

// Fills reports whether the hint has, after its mask, the latent of a picture that is to be filled in.
func (n *Net) Fills() bool { return n.Hint > n.Spec.Channels+1 }

// borrowed is the prefix of tensors that a net borrows from the model beside which it runs.
const borrowed = "model beside: "

// WithBorrowed returns the tensors of the net in set plus those that it borrows from model, under the names of the
// whole model.
func WithBorrowed(all []family.Family, set, model *weights.Set) (*weights.Set, error) {
	_, of, _, err := formOf(all, set)
	if err != nil {
		return nil, err
	}
	if model, err = family.Original(all, model); err != nil {
		return nil, err
	}
	whole := tensors(set)
	for _, key := range model.Names() {
		if of.Takes(key) {
			whole[borrowed+key], _ = model.Get(key)
		}
	}
	return weights.FromMap(whole), nil
}

func tensors(set *weights.Set) map[string]weights.Stored {
	all := map[string]weights.Stored{}
	for _, key := range set.Names() {
		all[key], _ = set.Get(key)
	}
	return all
}

// mode is the name of the table of union types, singles the prefix of MistoLine's outputs after single blocks.
const mode, singles = "controlnet_mode_embedder.weight", "single_controlnet_blocks."

// Is reports whether a set looks like a control net of any kind.
func Is(set *weights.Set) bool {
	return slices.ContainsFunc([]string{
		"controlnet_blocks.0.weight", "controlnet_blocks.0.linear.weight", "control_blocks.0.after_proj.weight",
		"after_proj_list.0.bias", "zero_convs.0.0.weight", "controlnet_cond_embedding.conv_in.weight", "lora_controlnet",
	}, set.Has)
}

// formOf returns the family of a net and the layout of its file. The error for an unsupported net says what it is.
func formOf(all []family.Family, set *weights.Set) (f *family.Family, of *family.Control, as *family.Form, err error) {
	if !Is(set) {
		return nil, nil, nil, fmt.Errorf("not a control net")
	}
	kind, supported := "", []string{}
	for i := range all {
		if all[i].Control == nil {
			continue
		}
		kinds := []string{}
		for _, c := range append([]family.Control{*all[i].Control}, all[i].Control.More...) {
			for name, what := range c.Refused {
				if set.Has(name) {
					kind = what
				}
			}
			for k := range c.Forms {
				if f == nil && c.Forms[k].Fits(set, "") {
					f, of, as = &all[i], &c, &c.Forms[k]
				}
			}
			if c.Kinds != "" {
				kinds = append(kinds, c.Kinds)
			}
		}
		if len(kinds) > 0 {
			supported = append(supported, fmt.Sprintf("%s (%s)", all[i].Name, strings.Join(kinds, ", ")))
		}
	}
	switch {
	case kind == "" && !set.Has("controlnet_blocks.0.weight") && f == nil:
		kind = "a control net for Stable Diffusion 1, 2 or XL"
	case kind == "" && f == nil:
		kind = "a control net of an unknown kind"
	case kind == "":
		return f, of, as, nil
	}
	return nil, nil, nil, fmt.Errorf("the file looks like %s; supported are control nets for %s", kind,
		strings.Join(supported, ", "))
}

// Open describes the control net in a set. meta is the metadata of the file, read like that of a model of the family.
func Open(known []family.Family, set *weights.Set, meta map[string]string) (*Net, error) {
	f, of, as, err := formOf(known, set)
	if err != nil {
		return nil, err
	}
	if of.Names != nil {
		set = set.Mapped(of.Names)
	}
	picture, _, err := pictureIn(set)
	if err != nil {
		return nil, err
	}
	base, added, taken := map[string]weights.Stored{}, map[string]weights.Stored{}, int64(0)
	for _, key := range set.Names() {
		t, _ := set.Get(key)
		_, _, seen := convolved(key)
		switch as, isHint := hintName(key); {
		case seen:
		case strings.HasPrefix(key, borrowed):
			base[key[len(borrowed):]] = t
			taken += t.Bytes()
		case isHint:
			added[as] = t
		case key == mode:
			added[key] = t
		case strings.HasPrefix(key, "controlnet_"), strings.HasPrefix(key, singles):
			key = strings.Replace(key, singles, "controlnet_single_blocks.", 1)
			dot := strings.LastIndexByte(key, '.')
			added[strings.TrimSuffix(key[:dot], ".linear")+".linear"+key[dot:]] = t
		case key == "pos_embed.pos_embed": // diffusers
			base["pos_embed"] = t
		default:
			base[key] = t
		}
	}
	for _, part := range []string{"weight", "bias"} {
		if t, ok := base[of.Hint+part]; ok && of.Hint != "" {
			added["hint."+part] = t
		}
	}
	if t := added["hint.weight"]; len(t.Shape) == 4 { // a convolution over non-overlapping patches
		t.Shape = []int{t.Shape[0], t.Shape[1] * t.Shape[2] * t.Shape[3]}
		added["hint.weight"] = t
	}
	begin := weights.FromMap(base)
	if as.Aliases {
		aliases := slices.Clone(f.Names.Diffusers)
		for i := range aliases {
			aliases[i].Swapped = false // only heads are swapped, and nets have none
		}
		if begin, err = weights.Renamed(begin, aliases); err != nil {
			return nil, fmt.Errorf("a control net for %s: %w", f.Name, err)
		}
	}
	all, lacks := tensors(begin), 0 // the rest of a whole model is added as shapes alone
	for key, shape := range of.Rest(begin) {
		t := weights.Stored{DType: engine.F32, Shape: shape}
		switch {
		case begin.Has(key):
			continue
		case !of.Takes(key):
		case taken > 0:
			return nil, fmt.Errorf("a control net for %s starts with %s of its model, which has none", f.Name, key)
		default:
			lacks += t.Len()
		}
		all[key] = t
	}
	whole := weights.FromMap(all)
	detect := f.Detect
	if of.Detect != nil {
		detect = of.Detect
	}
	c, err := detect(whole, meta)
	if err != nil {
		return nil, fmt.Errorf("a control net for %s: %w", f.Name, err)
	}
	d, err := c.Describe(whole)
	if err != nil {
		return nil, err
	}
	n, err := describe(d, of, weights.FromMap(added))
	if err == nil {
		n.Borrowed, n.Lacks, n.Factor = taken, int64(lacks), 1
		if t, ok := set.Get("control_type"); ok && of.Shown != nil && t.Len() == 1 {
			n.Factor, n.Offset = of.Shown(int(math.Round(float64(t.F32()[0]))))
		}
	}
	if err == nil && picture != nil {
		n.ReadsPicture, n.Format = true, latent.Format{Channels: n.Hint, Scale: 1}
		if !set.Has("controlnet_blocks.0.weight") { // MistoLine
			n.act = engine.SiLU
		}
	}
	return n, err
}

// hintName returns the canonical name of a tensor of the layer that reads the hint.
func hintName(key string) (string, bool) {
	for _, h := range []string{"pos_embed_input.proj.", "pos_embed_input.", "controlnet_x_embedder."} {
		if part, ok := strings.CutPrefix(key, h); ok {
			return "hint." + part, true
		}
	}
	return "", false
}

// describe assembles the description of a net.
func describe(d *family.Diffusion, c *family.Control, added *weights.Set) (*Net, error) {
	n := &Net{
		Family: d.Spec.Family, Spec: d.Spec, Format: d.Latent, Modes: added.Dim(mode, 0), kind: c,
	}
	n.Spec.Blocks = n.Spec.Blocks[:added.Count("controlnet_blocks")+added.Count("controlnet_single_blocks")]
	if c.NoShift {
		n.Format.Shift = 0
	}
	token := d.Spec.PatchSize * d.Spec.PatchSize
	n.Hint, n.Spec.WholeHint = added.Dim("hint.weight", 1)/token-c.Zeros, c.Zeros > 0
	n.Borrows, n.Root = len(c.Borrows) > 0, c.Root
	if n.Hint != d.Spec.Channels && n.Hint != d.Spec.Channels+1 {
		return nil, fmt.Errorf("a control net for %s whose hint has %d channels: want %d, or %d with a mask", n.Family,
			n.Hint, d.Spec.Channels, d.Spec.Channels+1)
	}
	rows, _ := added.Get(mode)
	options := n.options(c.Zeros)
	load := func(ops engine.Ops, held dit.Held, model func(dit.Held) (dit.Model, error)) (dit.Model, error) {
		m := &Model{desc: n, extra: newExtra(n, added.Has("controlnet_before.linear.weight"))}
		var err error
		if m.mem, err = weights.Load(ops, added, m.extra, options); err != nil {
			return nil, err
		}
		held.NoHead, held.Blocks = true, []dit.Range{{End: len(n.Spec.Blocks)}}
		if m.Model, err = model(held); err != nil {
			m.mem.Close()
			return nil, err
		}
		m.modes = dit.Undefined(n.Modes * n.Spec.Width)
		return m, nil
	}
	n.Spec.Outline = &dit.Outline{Part: func(held dit.Held) (dit.Model, error) {
		return load(weights.Shapes(), held, d.Spec.Outline.Part)
	}}
	n.Load = func(ops engine.Ops, held dit.Held) (dit.Model, error) {
		if n.Borrows && n.Borrowed == 0 {
			return nil, fmt.Errorf("a control net for %s that starts with weights of its model is loaded beside one", n.Family)
		}
		m, err := load(ops, held, func(held dit.Held) (dit.Model, error) { return d.Load(ops, held) })
		if err == nil && n.Modes > 0 {
			m.(*Model).modes = rows.F32()
		}
		return m, err
	}
	return n, nil
}

// options says how the layers of a net are loaded that it has besides those of a model. The hint is read with zeros
// more channels.
func (n *Net) options(zeros int) weights.Options {
	return weights.Options{Model: "control net", Dims: map[string]int{
		"E": n.Spec.Width, "H": n.Hint + zeros, "p": n.Spec.PatchSize, "M": n.Modes,
	}}
}

// Hypothetical describes a control net that copies the first double and single blocks of a model, as most do, without
// a file, so that it cannot be loaded. Its Spec.Params counts the net alone, unlike Open's, which counts a whole
// model.
func Hypothetical(f *family.Family, base *dit.Spec, double, single int) (*Net, error) {
	if f.Control == nil || f.Control.Kinds == "" {
		return nil, fmt.Errorf("no control nets run here beside %s models", f.Name)
	}
	n := &Net{Family: f.Name, Spec: *base, Hint: base.Channels, kind: f.Control}
	e := int64(base.Width)
	n.Spec.Blocks, n.Spec.Params = nil, base.Params+e*int64(base.Channels*base.PatchSize*base.PatchSize+1)
	want, has := map[dit.BlockKind]int{dit.Double: double, dit.Single: single}, map[dit.BlockKind]int{}
	var copied []int
	for i, b := range base.Blocks {
		has[b.Kind]++
		n.Spec.Params -= b.Params
		if want[b.Kind] > 0 {
			want[b.Kind]--
			copied, n.Spec.Blocks = append(copied, i), append(n.Spec.Blocks, b)
			n.Spec.Params += b.Params + e*(e+1) // plus the linear layer of its output
		}
	}
	if double < 0 || single < 0 || want[dit.Double]+want[dit.Single] > 0 || len(n.Spec.Blocks) == 0 {
		return nil, fmt.Errorf("a control net of %d double and %d single blocks: want at least one block, and at most "+
			"%d and %d, which the model has", double, single, has[dit.Double], has[dit.Single])
	}
	n.Spec.Outline = &dit.Outline{Part: func(held dit.Held) (dit.Model, error) {
		m := &Model{desc: n, extra: newExtra(n, false)}
		options := n.options(0)
		declared, err := weights.Declare(m.extra, options)
		if err != nil {
			return nil, err
		}
		if m.mem, err = weights.Load(weights.Shapes(), weights.Undefined(declared), m.extra, options); err != nil {
			return nil, err
		}
		held.NoHead = true
		whole, err := base.Outline.Part(held)
		m.Model = copiedBlocks{whole, copied, &n.Spec}
		return m, err
	}}
	return n, nil
}

// copiedBlocks is a model that has only some blocks of another one.
type copiedBlocks struct {
	dit.Model
	blocks []int // of the other model
	spec   *dit.Spec
}

// Spec describes the model.
func (m copiedBlocks) Spec() *dit.Spec { return m.spec }

func (m copiedBlocks) PrepareBlock(env dit.Env, p *dit.Prepared, i int) {
	m.Model.PrepareBlock(env, p, m.blocks[i])
}

func (m copiedBlocks) ModulateBlock(env dit.Env, mod *dit.Modulation, i int) {
	m.Model.ModulateBlock(env, mod, m.blocks[i])
}

func (m copiedBlocks) Block(env dit.Env, i int, s *dit.State, skip engine.Tensor) {
	m.Model.Block(env, m.blocks[i], s, skip)
}

// Feeds lists, for each output, the blocks of a base model after which it is added (family.Control.Repeat).
func (n *Net) Feeds(base *dit.Spec) [][]int {
	out, from, lo := make([][]int, len(n.Spec.Blocks)), 0, 0
	for _, kind := range []dit.BlockKind{dit.Double, dit.Single} {
		is := func(b dit.BlockSpec) bool { return b.Kind == kind || b.Kind == dit.Cross && kind == dit.Double }
		to, hi := from, lo
		for to < len(n.Spec.Blocks) && is(n.Spec.Blocks[to]) {
			to++
		}
		for hi < len(base.Blocks) && is(base.Blocks[hi]) {
			hi++
		}
		if outputs := to - from; outputs > 0 {
			times := n.kind.Repeat(&n.Spec, kind, outputs)
			for b := range min(hi-lo, outputs*times-n.kind.Short) {
				k := from + b/times
				if n.kind.First && b%times > 0 {
					continue
				}
				if n.ReadsPicture { // ComfyUI cycles through the outputs of these
					k = from + b%outputs
				}
				out[k] = append(out[k], lo+b)
			}
		}
		from, lo = to, hi
	}
	return out
}

// Package control is control nets: ControlNets of InstantX and others (also union ones and for filling in) for FLUX, of
// diffusers for SD3, of InstantX for Qwen-Image. Such a net is the beginning of a model of its family, a few blocks
// without a head, which adds a hint to its image tokens and gives its state after each block through a linear layer.
//
// open.go recognises files, model.go computes.
//
// Facts that have caused bugs: the hint goes through the latent format of the base model, but SD3's without its shift;
// SD3's nets get a pooled vector of zeros; a type of a union net is a row before the text, at the place of its first
// row, and no type is no row; SD3's last block keeps its text, other than that of a whole model.
package control

import (
	"fmt"
	"maps"
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
	Blocks int           // of the net; Spec has one more of SD3, which is nowhere
	Spec   dit.Spec      // the family's, with the blocks of the net
	Hint   int           // channels of the hint: those of a latent, or one more, a mask
	Modes  int           // rows for types of a union net, 0: it is none
	Format latent.Format // of the hint, as files and VAEs have latents
	// Load reads the part in held with ops: slices for tensor groups, else everything. The set that the net was described
	// with must still be open. The result is a *Model.
	Load func(ops engine.Ops, held dit.Held) (dit.Model, error)
}

// How many blocks base models have of each kind, for which outputs are repeated.
const (
	fluxDouble, fluxSingle = 19, 38
	qwenBlocks             = 60
)

// mode is the name of the rows for types.
const mode = "controlnet_mode_embedder.weight"

// hints are the names of the layer that reads the hint.
func hints() []string {
	return []string{"controlnet_x_embedder.", "pos_embed_input.", "pos_embed_input.proj."}
}

// Is reports whether a set looks like a control net of any kind.
func Is(set *weights.Set) bool {
	for _, name := range []string{
		"controlnet_blocks.0.weight", "controlnet_blocks.0.linear.weight", "control_blocks.0.after_proj.weight",
		"after_proj_list.18.bias", "zero_convs.0.0.weight", "controlnet_cond_embedding.conv_in.weight", "lora_controlnet",
	} {
		if set.Has(name) {
			return true
		}
	}
	return false
}

// familyOf tells the family of a net and whether it is in the names of diffusers, as ComfyUI's loader does; what is not
// supported is named.
func familyOf(set *weights.Set) (name string, diffusers bool, err error) {
	flux := set.Has("double_blocks.0.img_attn.norm.key_norm.scale")
	switch {
	case !Is(set):
		return "", false, fmt.Errorf("not a control net")
	case set.Has("input_hint_block.0.weight"):
		return "", false, unsupported("an XLabs net for FLUX, whose hint is a picture")
	case set.Has("controlnet_blocks.0.linear.weight"):
		return "", false, unsupported("MistoLine for FLUX, whose hint is a picture")
	case !set.Has("controlnet_blocks.0.weight"):
		return "", false, unsupported("a control net for HunyuanDiT, Qwen-Image (Fun) or Stable Diffusion 1, 2 or XL")
	case set.Has("transformer_blocks.0.adaLN_modulation.1.bias"):
		return "", false, unsupported("one of Stability AI for SD3.5, which reads weights of the model")
	case set.Has("pos_embed_input.proj.weight"):
		return "sd3", !set.Has("joint_blocks.0.x_block.attn.qkv.weight"), nil
	case set.Has("transformer_blocks.0.img_mlp.net.0.proj.weight"):
		return "qwenimage", false, nil
	case flux || set.Has("controlnet_x_embedder.weight"):
		return "flux", !flux, nil
	}
	return "", false, unsupported("a control net of an unknown kind")
}

func unsupported(what string) error {
	return fmt.Errorf("the file looks like %s; supported are control nets whose hint is a latent, for flux (InstantX, "+
		"union, inpaint), sd3 (diffusers) and qwenimage (InstantX, inpaint)", what)
}

// Open describes the control net that a set holds; meta is the file's metadata, read like that of a model of the
// family.
func Open(all []family.Family, set *weights.Set, meta map[string]string) (*Net, error) {
	name, diffusers, err := familyOf(set)
	if err != nil {
		return nil, err
	}
	f := all[slices.IndexFunc(all, func(f family.Family) bool { return f.Name == name })]
	base, own := map[string]weights.Stored{}, map[string]weights.Stored{}
	for _, key := range set.Names() {
		t, _ := set.Get(key)
		switch as, isHint := hintName(key); {
		case isHint:
			if len(t.Shape) == 4 { // a convolution over patches that do not overlap
				t.Shape = []int{t.Shape[0], t.Shape[1] * t.Shape[2] * t.Shape[3]}
			}
			own[as] = t
		case key == mode:
			own[key] = t
		case strings.HasPrefix(key, "controlnet_"):
			dot := strings.LastIndexByte(key, '.')
			own[key[:dot]+".linear"+key[dot:]] = t
		case key == "pos_embed.pos_embed": // of diffusers
			base["pos_embed"] = t
		default:
			base[key] = t
		}
	}
	begin := weights.FromMap(base)
	if diffusers {
		aliases := slices.Clone(f.Names.Diffusers)
		for i := range aliases {
			aliases[i].Swapped = false // that is of heads
		}
		if begin, err = weights.Renamed(begin, aliases); err != nil {
			return nil, fmt.Errorf("a control net for %s: %w", name, err)
		}
	}
	c, err := f.Detect(completed(name, begin), meta)
	if err != nil {
		return nil, fmt.Errorf("a control net for %s: %w", name, err)
	}
	d, err := c.Describe(completed(name, begin))
	if err != nil {
		return nil, err
	}
	return describe(d, weights.FromMap(own))
}

// hintName is the one name of the layer that reads the hint.
func hintName(key string) (string, bool) {
	for _, h := range slices.Backward(hints()) { // the longest first
		if part, ok := strings.CutPrefix(key, h); ok {
			return "hint." + part, true
		}
	}
	return "", false
}

// completed gives a net, as shapes alone, the rest of a model that it lacks: the head, and of SD3 a last block. Nothing
// of it is loaded.
func completed(name string, begin *weights.Set) *weights.Set {
	all := map[string]weights.Stored{}
	for _, key := range begin.Names() {
		all[key], _ = begin.Get(key)
	}
	add := func(key string, n, k int) {
		all[key+".weight"] = weights.Stored{DType: engine.F32, Shape: []int{n, k}}
		all[key+".bias"] = weights.Stored{DType: engine.F32, Shape: []int{n}}
	}
	e, in := begin.Dim("img_in.weight", 0), begin.Dim("img_in.weight", 1)
	if name == "qwenimage" {
		add("proj_out", in, e)
		add("norm_out.linear", 2*e, e)
		return weights.FromMap(all)
	}
	if name == "sd3" {
		e, in = begin.Dim("x_embedder.proj.weight", 0), begin.Dim("x_embedder.proj.weight", 1)*4
		last := begin.Count("joint_blocks")
		from := fmt.Sprintf("joint_blocks.%d.", last-1)
		for key, t := range maps.Clone(all) {
			part, ok := strings.CutPrefix(key, from)
			text, of := strings.CutPrefix(part, "context_block.")
			if ok && (!of || strings.HasPrefix(text, "attn.qkv.") || strings.HasPrefix(text, "attn.ln_")) {
				all[fmt.Sprintf("joint_blocks.%d.%s", last, part)] = weights.Stored{DType: engine.F32, Shape: t.Shape}
			}
		}
		add(fmt.Sprintf("joint_blocks.%d.context_block.adaLN_modulation.1", last), 2*e, e)
	}
	add("final_layer.linear", in, e)
	add("final_layer.adaLN_modulation.1", 2*e, e)
	return weights.FromMap(all)
}

// describe puts the parts of a net together.
func describe(d *family.Diffusion, own *weights.Set) (*Net, error) {
	n := &Net{Family: d.Spec.Family, Spec: d.Spec, Blocks: len(d.Spec.Blocks), Format: d.Latent, Modes: own.Dim(mode, 0)}
	if n.Family == "sd3" {
		n.Blocks--
		n.Format.Shift = 0 // ComfyUI comfy/controlnet.py load_controlnet_mmdit
	}
	token := d.Spec.PatchSize * d.Spec.PatchSize
	n.Hint = own.Dim("hint.weight", 1) / token
	if n.Hint != d.Spec.Channels && n.Hint != d.Spec.Channels+1 {
		return nil, fmt.Errorf("a control net for %s whose hint has %d channels: want %d, or %d with a mask", n.Family,
			n.Hint, d.Spec.Channels, d.Spec.Channels+1)
	}
	rows, _ := own.Get(mode)
	options := weights.Options{Model: "control net", Dims: map[string]int{
		"E": d.Spec.Width, "H": n.Hint, "p": d.Spec.PatchSize, "M": n.Modes,
	}}
	n.Load = func(ops engine.Ops, held dit.Held) (dit.Model, error) {
		m := &Model{desc: n, extra: newExtra(n)}
		var err error
		if m.mem, err = weights.Load(ops, own, m.extra, options); err != nil {
			return nil, err
		}
		if n.Modes > 0 {
			m.modes = rows.F32()
		}
		held.NoHead, held.Blocks = true, []dit.Range{{End: n.Blocks}}
		if m.Model, err = d.Load(ops, held); err != nil {
			m.mem.Close()
			return nil, err
		}
		return m, nil
	}
	return n, nil
}

// Feeds lists for each output the blocks of a base model behind which it is added: the outputs of FLUX and Qwen-Image
// are repeated as many times as it takes for the blocks of the released models, those of SD3 for its depth.
func (n *Net) Feeds(base *dit.Spec) [][]int {
	out, single := make([][]int, n.Blocks), 0
	for single < n.Blocks && n.Spec.Blocks[single].Kind == dit.Double {
		single++
	}
	first := slices.IndexFunc(base.Blocks, func(b dit.BlockSpec) bool { return b.Kind == dit.Single })
	if first < 0 {
		first = len(base.Blocks)
	}
	// share gives blocks [lo, hi) of the base to outputs [from, to), times in a row each
	share := func(from, to, lo, hi, times int) {
		for b := lo; b < hi && (b-lo)/times < to-from; b++ {
			k := from + (b-lo)/times
			out[k] = append(out[k], b)
		}
	}
	repeat := func(n, of int) int { return (of + n - 1) / max(n, 1) }
	switch n.Family {
	case "sd3":
		depth := n.Spec.Width / 64
		times := max(depth/n.Blocks, 1)
		share(0, n.Blocks, 0, min(first, n.Blocks*times-1), times)
	case "qwenimage":
		share(0, n.Blocks, 0, first, repeat(n.Blocks, qwenBlocks))
	default:
		share(0, single, 0, first, repeat(single, fluxDouble))
		if single < n.Blocks {
			share(single, n.Blocks, first, len(base.Blocks), repeat(n.Blocks-single, fluxSingle))
		}
	}
	return out
}

package value

import (
	"cmp"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"

	"patchbay/array"
	"patchbay/engine"
	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/models/family"
	"patchbay/node/picture"
	"patchbay/node/pyjson"
	"patchbay/parallel/request"
)

// F32 returns the values of a Tensor of any float type. It returns an error, naming shape and size, if they do not
// match.
func F32(t *array.Tensor) ([]float32, error) {
	dtype, err := floatOf(t)
	if err != nil {
		return nil, err
	}
	n := 1
	for _, s := range t.Shape {
		if s < 0 || (s > 0 && n > MaxValues/s) {
			return nil, fmt.Errorf("tensor of shape %v: at most %d values", t.Shape, MaxValues)
		}
		n *= s
	}
	if n*dtype.Size() != len(t.Data) {
		return nil, fmt.Errorf("tensor of shape %v and dtype %s with %d bytes", t.Shape, t.DType, len(t.Data))
	}
	v := make([]float32, n)
	engine.Widen(v, t.Data, dtype)
	return v, nil
}

// floatOf returns the element type of a Tensor, or an error if that is no supported float type.
func floatOf(t *array.Tensor) (engine.DType, error) {
	dtype, ok := map[string]engine.DType{"f32": engine.F32, "f16": engine.F16, "bf16": engine.BF16}[t.DType]
	if !ok {
		return dtype, fmt.Errorf("tensor of dtype %q: f32, f16 and bf16 are taken", t.DType)
	}
	return dtype, nil
}

// finite returns the values of a Tensor, or an error if there are NaN or infinities.
func finite(t *array.Tensor) ([]float32, error) {
	v, err := F32(t)
	if err == nil {
		err = Finite(v)
	}
	return v, err
}

// Export returns the wire form of a value, or false if the value stays here and is represented by a handle.
func Export(v any) (any, bool) {
	switch x := v.(type) {
	case *picture.Image:
		return array.New(x.Data, x.B, x.Y, x.X, x.C), true
	case *picture.Mask:
		return maskTensor(x), true
	case Sigmas:
		return array.New(x, len(x)), true
	case *Audio:
		if x == nil {
			return nil, false
		}
		return x.export(), true
	case *Latent:
		s := x.Samples
		if s.Sound.Len() > 0 {
			return nil, false // the wire form has one tensor
		}
		o := pyjson.NewObject("samples", array.New(s.Data, s.Shape()...))
		if m := x.NoiseMask; m != nil {
			o.Set("noise_mask", maskTensor(m))
		}
		if x.BatchIndex != nil {
			o.Set("batch_index", integers(x.BatchIndex))
		}
		if x.Scale != 0 {
			o.Set("downscale_ratio_spacial", int64(x.Scale))
		}
		return o, true
	case Conditioning:
		if slices.ContainsFunc(x, func(c Cond) bool {
			return len(c.Controls)+len(c.Guides)+len(c.Keyframes)+len(c.Pictures)+c.SoundReference.Rows > 0
		}) {
			return nil, false // control nets, their VAEs, and what guides a video or its sound have no wire form
		}
		list := []any{}
		for i := range x {
			list = append(list, x[i].export())
		}
		return list, true
	case Camera:
		return x.Info, true
	case string, bool, int64, uint64, float64:
		return v, true
	}
	return nil, false
}

func maskTensor(m *picture.Mask) *array.Tensor { return array.New(m.Data, m.B, m.Y, m.X) }

func integers(v []int) []any {
	out := make([]any, len(v))
	for i := range v {
		out[i] = int64(v[i])
	}
	return out
}

// export returns [context, {keys}], with ComfyUI's keys where there are any.
func (c *Cond) export() []any {
	o := pyjson.NewObject()
	put := func(given bool, key string, v any) {
		if given {
			o.Set(key, v)
		}
	}
	put(c.Pooled != nil, "pooled_output", array.New(c.Pooled, 1, len(c.Pooled)))
	switch {
	case c.NoGuidance:
		o.Set("guidance", nil)
	case c.Guidance != nil:
		o.Set("guidance", float64(*c.Guidance))
	}
	put(c.Ranged, "start_percent", c.Start)
	put(c.Ranged, "end_percent", c.End)
	put(c.HasStrength, "strength", float64(c.Strength))
	put(c.Area != request.Area{}, "area", integers([]int{c.Area.H, c.Area.W, c.Area.Y, c.Area.X}))
	if p := c.AreaPart; p != nil {
		o.Set("area", []any{"percentage", p[0], p[1], p[2], p[3]})
	}
	if c.Mask != nil {
		o.SetAll("mask", maskTensor(c.Mask), "mask_strength", float64(c.MaskStrength), "set_area_to_bounds", c.MaskBounds)
	}
	put(c.ContextLen > 0, "context_len", int64(c.ContextLen))
	put(c.Context2.Rows > 0, "context2", array.New(c.Context2.Data, 1, c.Context2.Rows, c.Context2.Cols))
	put(c.Context2.Rows > 0, "context2_len", int64(c.Context2Len))
	put(c.Vision.Rows > 0, "vision_states", array.New(c.Vision.Data, 1, c.Vision.Rows, c.Vision.Cols))
	var biases, latents []any
	for _, b := range c.Biases {
		biases = append(biases, []any{int64(b.Rows.Start), int64(b.Rows.End), float64(b.Value)})
	}
	for _, l := range c.Latents {
		latents = append(latents, array.New(l.Data, l.Shape()...))
	}
	put(c.Biases != nil, "attention_biases", biases)
	put(c.Latents != nil, "reference_latents", latents)
	put(c.ConcatImage.B > 0, "concat_latent_image", array.New(c.ConcatImage.Data, c.ConcatImage.Shape()...))
	put(c.ConcatGiven.B > 0, "concat_given", array.New(c.ConcatGiven.Data, c.ConcatGiven.Shape()...))
	if m := c.ConcatMask; m != nil {
		o.Set("concat_mask", array.New(m.Data, m.B, 1, m.Y, m.X))
	}
	put(c.Method != "", "reference_latents_method", c.Method)
	put(c.FrameRate != 0, "frame_rate", c.FrameRate)
	put(c.Connected, "unprocessed_ltxav_embeds", false)
	var slots []any
	for _, n := range c.Slots {
		slots = append(slots, int64(n))
	}
	put(c.Slots != nil, "image_slots", slots)
	for i, n := range c.sizes() {
		o.Set(sizeKeys[i], int64(*n))
	}
	if c.Score != nil {
		o.Set("aesthetic_score", *c.Score)
	}
	put(c.Size != nil, "size", array.New(c.Size, len(c.Size)))
	return []any{array.New(c.Context.Data, 1, c.Context.Rows, c.Context.Cols), o}
}

// sizeKeys are the keys of Cond.Sizes in ComfyUI's dictionary, in the order of sizes.
var sizeKeys = []string{"height", "width", "crop_h", "crop_w", "target_height", "target_width"}

// sizes returns the fields of Sizes, none if there are none.
func (c *Cond) sizes() []*int {
	if c.Sizes == nil {
		return nil
	}
	s := c.Sizes
	return []*int{&s.Height, &s.Width, &s.Top, &s.Left, &s.TargetHeight, &s.TargetWidth}
}

// ImportValue converts the wire form of a value of type kind for an input. Checking the range of literals is up to the
// caller.
func ImportValue(kind, field string, v any) (out any, err error) {
	v = ordered(v)
	switch {
	case kind == "IMAGE" || kind == "MASK" || kind == "SIGMAS":
		out, err = importTensor(kind, v)
	case kind == "LATENT":
		out, err = importLatent(v)
	case kind == "CONDITIONING":
		out, err = importConditioning(v)
	case kind == "AUDIO":
		out, err = importAudio(v)
	case IsWidget(kind), strings.ContainsAny(kind, "*,") && scalar(v):
		out, err = pyjson.Normalize(v)
	default:
		err = fmt.Errorf("takes a handle of type %s", kind)
	}
	if err != nil {
		return nil, fault.Bad(field, "%v", err)
	}
	return out, nil
}

// scalar reports whether a value is a text, a boolean or a number.
func scalar(v any) bool {
	k := reflect.ValueOf(v).Kind()
	return k >= reflect.Bool && k <= reflect.Float64 || k == reflect.String
}

// ordered converts a map to an Object; other values are returned as they are.
func ordered(v any) any {
	m, ok := v.(map[string]any)
	if !ok {
		return v
	}
	o := pyjson.NewObject()
	for k, e := range m {
		o.Set(k, e)
	}
	return o
}

func importTensor(kind string, v any) (any, error) {
	t, ok := array.Of(v)
	if !ok {
		return nil, fmt.Errorf("takes a tensor (%s), got %T", kind, v)
	}
	data, err := finite(t)
	if err != nil {
		return nil, err
	}
	s := t.Shape
	switch {
	case kind == "IMAGE" && len(s) == 4 && s[0] > 0 && s[1] > 0 && s[2] > 0 && (s[3] == 3 || s[3] == 4):
		return &picture.Image{B: s[0], Y: s[1], X: s[2], C: s[3], Data: data}, nil
	case kind == "MASK" && len(s) == 2:
		return &picture.Mask{B: 1, Y: s[0], X: s[1], Data: data}, nil
	case kind == "MASK" && len(s) == 3:
		return &picture.Mask{B: s[0], Y: s[1], X: s[2], Data: data}, nil
	case kind == "SIGMAS" && len(s) == 1:
		return Sigmas(data), nil
	}
	want := map[string]string{"IMAGE": "[B, Y, X, 3 or 4]", "MASK": "[B, Y, X] or [Y, X]", "SIGMAS": "[n]"}[kind]
	return nil, fmt.Errorf("takes a tensor %s, got %v", want, s)
}

// maxScale is the largest Latent.Scale that a client may send.
const maxScale = 64

func importLatent(v any) (*Latent, error) {
	o, ok := v.(*pyjson.Object)
	if !ok {
		return nil, fmt.Errorf("takes {samples: tensor [B, C, Y, X]}, got %T", v)
	}
	t, ok := array.Of(o.At("samples"))
	if !ok || len(t.Shape) != 4 && len(t.Shape) != 5 {
		return nil, fmt.Errorf("samples must be a tensor [B, C, Y, X] or [B, C, layers, Y, X]")
	}
	data, err := finite(t)
	if err != nil {
		return nil, fmt.Errorf("samples: %w", err)
	}
	l := &Latent{}
	l.Samples, _ = request.LatentOf(t.Shape, data)
	if m := o.At("noise_mask"); m != nil {
		mask, err := importTensor("MASK", squeezed(m))
		if err != nil {
			return nil, fmt.Errorf("noise_mask: %w", err)
		}
		l.NoiseMask, _ = mask.(*picture.Mask)
	}
	if b := o.At("batch_index"); b != nil {
		list, ok := b.([]any)
		if !ok {
			return nil, fmt.Errorf("batch_index is %s: want a list of numbers from 0 to %d", pyjson.Repr(b), 1<<20)
		}
		l.BatchIndex = []int{}
		for _, e := range list {
			n, err := pyjson.Int(e)
			i, small := n.(int64)
			if err != nil || !small || i < 0 || i > 1<<20 {
				return nil, fmt.Errorf("batch_index holds %s: want numbers from 0 to %d", pyjson.Repr(e), 1<<20)
			}
			l.BatchIndex = append(l.BatchIndex, int(i))
		}
	}
	if s := o.At("downscale_ratio_spacial"); s != nil {
		n, err := pyjson.Int(s)
		pixels, small := n.(int64)
		if err != nil || !small || pixels < 1 || pixels > maxScale {
			return nil, fmt.Errorf("downscale_ratio_spacial is %s: want a number from 1 to %d", pyjson.Repr(s), maxScale)
		}
		l.Scale = int(pixels)
	}
	return l, nil
}

// squeezed drops the channel dimension of ComfyUI's noise masks: [B, 1, Y, X] -> [B, Y, X].
func squeezed(v any) any {
	if t, ok := array.Of(v); ok && len(t.Shape) == 4 && t.Shape[1] == 1 {
		return &array.Tensor{DType: t.DType, Shape: []int{t.Shape[0], t.Shape[2], t.Shape[3]}, Data: t.Data}
	}
	return v
}

func importConditioning(v any) (Conditioning, error) {
	list, ok := v.([]any)
	if !ok {
		return nil, fmt.Errorf("takes a list of [tensor, {...}], got %T", v)
	}
	out := Conditioning{}
	for i, e := range list {
		pair, ok := e.([]any)
		if !ok || len(pair) != 2 {
			return nil, fmt.Errorf("entry %d must be [tensor, {...}]", i)
		}
		c, err := importCond(pair[0], pair[1])
		if err != nil {
			return nil, fmt.Errorf("entry %d: %w", i, err)
		}
		out = append(out, c)
	}
	return out, nil
}

// importCond reads one entry. Unknown keys are errors: ignoring them would give a plausible but wrong picture.
func importCond(context, keys any) (Cond, error) {
	c := Cond{MaskStrength: 1}
	var err error
	if c.Context, err = importArray(context); err != nil {
		return c, fmt.Errorf("context: %w", err)
	}
	o, ok := ordered(keys).(*pyjson.Object)
	if !ok {
		return c, fmt.Errorf("the second item must be an object")
	}
	for _, k := range o.Keys() {
		if err := c.set(k, o.At(k)); err != nil {
			return c, fmt.Errorf("%s: %w", k, err)
		}
	}
	if c.Ranged && !o.Has("end_percent") {
		c.End = 1
	}
	return c, nil
}

// importBiases reads a list of [first row, end row (exclusive), value].
func importBiases(v any) (out []dit.Bias, err error) {
	list, ok := v.([]any)
	for i, e := range list {
		var n [3]float64
		part, _ := e.([]any)
		if ok = ok && len(part) == len(n); !ok {
			break
		}
		for k := range n {
			if n[k], err = pyjson.Float(part[k]); err != nil || !(math.Abs(n[k]) <= math.MaxInt32) {
				return nil, fmt.Errorf("item %d holds %s: want finite numbers", i, pyjson.Repr(part[k]))
			}
		}
		out = append(out, dit.Bias{Rows: dit.Range{Start: int(n[0]), End: int(n[1])}, Value: float32(n[2])})
	}
	if !ok {
		return nil, fmt.Errorf("takes a list of [first row, behind the last row, value]")
	}
	return out, nil
}

// importLatents reads a list of latents [B, C, Y, X] or [B, C, 1, Y, X].
func importLatents(v any) (out []request.Latent, err error) {
	list, ok := v.([]any)
	if !ok {
		return nil, fmt.Errorf("takes a list of tensors")
	}
	for i, e := range list {
		l, err := importPlanes(e)
		if err != nil {
			return nil, fmt.Errorf("item %d: %w", i, err)
		}
		out = append(out, l)
	}
	return out, nil
}

// importPlanes reads a tensor [B, C, Y, X] or [B, C, 1, Y, X].
func importPlanes(v any) (l request.Latent, err error) {
	t, ok := array.Of(v)
	if ok && len(t.Shape) == 5 && t.Shape[2] == 1 { // one frame
		t = &array.Tensor{DType: t.DType, Shape: slices.Delete(slices.Clone(t.Shape), 2, 3), Data: t.Data}
	}
	if !ok || len(t.Shape) != 4 {
		return l, fmt.Errorf("takes a tensor [1, channels, rows, columns]")
	}
	l = request.Latent{B: t.Shape[0], C: t.Shape[1], Y: t.Shape[2], X: t.Shape[3]}
	l.Data, err = finite(t)
	return l, err
}

// importArray reads a tensor [1, Lt, D] or [Lt, D].
func importArray(v any) (dit.Array, error) {
	t, ok := array.Of(v)
	if !ok || len(t.Shape) < 2 || len(t.Shape) > 3 || (len(t.Shape) == 3 && t.Shape[0] != 1) {
		return dit.Array{}, fmt.Errorf("takes a tensor [1, tokens, channels]")
	}
	data, err := finite(t)
	n := len(t.Shape)
	return dit.Array{Rows: t.Shape[n-2], Cols: t.Shape[n-1], Data: data}, err
}

// set sets one key of an entry's dictionary.
func (c *Cond) set(key string, v any) (err error) {
	number := func() float64 {
		var f float64
		if f, err = pyjson.Float(v); err == nil && (math.IsNaN(f) || math.IsInf(f, 0)) {
			err = fmt.Errorf("is %v: want a finite number", f)
		}
		return f
	}
	values := func() []float32 {
		t, ok := array.Of(v)
		if !ok {
			err = fmt.Errorf("takes a tensor")
			return nil
		}
		var data []float32
		data, err = finite(t)
		return data
	}
	switch key {
	case "pooled_output":
		if v != nil {
			c.Pooled = values()
		}
	case "guidance":
		if v == nil {
			c.NoGuidance = true
			return nil
		}
		g := float32(number())
		c.Guidance = &g
	case "start_percent":
		c.Start, c.Ranged = number(), true
	case "end_percent":
		c.End, c.Ranged = number(), true
	case "strength":
		c.Strength, c.HasStrength = float32(number()), true
	case "mask_strength":
		c.MaskStrength = float32(number())
	case "set_area_to_bounds":
		c.MaskBounds = pyjson.Bool(v)
	case "context_len":
		c.ContextLen = int(number())
	case "context2_len":
		c.Context2Len = int(number())
	case "context2":
		c.Context2, err = importArray(v)
	case "vision_states":
		c.Vision, err = importArray(v)
	case "attention_biases":
		c.Biases, err = importBiases(v)
	case "reference_latents":
		c.Latents, err = importLatents(v)
	case "concat_latent_image":
		c.ConcatImage, err = importPlanes(v)
	case "concat_given":
		c.ConcatGiven, err = importPlanes(v)
	case "concat_mask":
		var l request.Latent
		if l, err = importPlanes(v); err == nil && l.C != 1 {
			return fmt.Errorf("takes a tensor [B, 1, rows, columns]")
		}
		c.ConcatMask = &picture.Mask{B: l.B, Y: l.Y, X: l.X, Data: l.Data}
	case "frame_rate":
		c.FrameRate = number()
	case "unprocessed_ltxav_embeds":
		c.Connected = !pyjson.Bool(v)
	case "reference_latents_method":
		var ok bool
		if c.Method, ok = v.(string); !ok {
			return fmt.Errorf("is %s: want offset, index, uxo or index_timestep_zero", pyjson.Repr(v))
		}
	case "image_slots":
		list, ok := v.([]any)
		for _, n := range list {
			row, whole := n.(int64)
			ok, c.Slots = ok && whole && row >= 0 && row <= math.MaxInt32, append(c.Slots, int(row))
		}
		if !ok {
			return fmt.Errorf("is %s: want the number of text rows before each reference", pyjson.Repr(v))
		}
	case "height", "width", "crop_h", "crop_w", "target_height", "target_width":
		if c.Sizes == nil {
			c.Sizes = &family.Sizes{}
		}
		n := int(number())
		*c.sizes()[slices.Index(sizeKeys, key)] = n
		if s := c.Sizes; key == "height" { // without another target, it is the picture
			s.TargetHeight = cmp.Or(s.TargetHeight, n)
		} else if key == "width" {
			s.TargetWidth = cmp.Or(s.TargetWidth, n)
		}
	case "aesthetic_score":
		n := number()
		c.Score = &n
	case "size":
		c.Size = values()
	case "mask":
		m, maskErr := importTensor("MASK", v)
		c.Mask, _ = m.(*picture.Mask)
		return maskErr
	case "area":
		return c.setArea(v)
	default:
		return fmt.Errorf("is not a key that is understood here")
	}
	return err
}

// setArea reads [height, width, y, x] in latent pixels, or ["percentage", ...] as fractions of the latent.
func (c *Cond) setArea(v any) error {
	list, _ := v.([]any)
	if len(list) == 5 && list[0] == "percentage" {
		c.AreaPart = new([4]float64)
		for i := range c.AreaPart {
			f, err := pyjson.Float(list[i+1])
			if err != nil || !(f >= 0 && f <= 1) {
				return fmt.Errorf("part %d is %s: want 0 to 1", i, pyjson.Repr(list[i+1]))
			}
			c.AreaPart[i] = f
		}
		return nil
	}
	n := [4]int{}
	if len(list) != 4 {
		return fmt.Errorf("takes [height, width, y, x]")
	}
	for i := range n {
		p, err := pyjson.Int(list[i])
		k, small := p.(int64)
		if err != nil || !small || k < 0 || k > 1<<20 {
			return fmt.Errorf("item %d is %s: want a number of latent pixels", i, pyjson.Repr(list[i]))
		}
		n[i] = int(k)
	}
	c.Area = request.Area{H: n[0], W: n[1], Y: n[2], X: n[3]}
	return nil
}

// IsWidget reports whether inputs of type t take literals.
func IsWidget(t string) bool {
	return t == "INT" || t == "FLOAT" || t == "STRING" || t == "BOOLEAN" || t == "COMBO"
}

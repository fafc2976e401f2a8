package classes

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"patchbay/fault"
	"patchbay/node/graph"
	"patchbay/node/picture"
	"patchbay/node/picture/resample"
	"patchbay/node/pyjson"
	"patchbay/node/value"
)

// boxClasses returns the classes that describe where in a picture things are.
func boxClasses() []graph.Class {
	drawn := func(name string, socketless bool) graph.Input {
		return graph.Number(name, "BOUNDING_BOXES", "", "default", []any{}, "socketless", socketless)
	}
	return []graph.Class{
		{
			Name: "CreateBoundingBoxes", Display: "Create Bounding Boxes", Module: "comfy_extras.nodes_bounding_boxes",
			Category: "utilities", Output: true, Experimental: true, Hidden: workflowTexts(),
			Description: "Describes the boxes that are drawn in the editor, in pixels and as elements of prompts.",
			Inputs: []graph.Input{
				graph.Int("width", "of the canvas", 1024, 64, 16384, 16), graph.Int("height", "of the canvas", 1024, 64, 16384, 16),
				drawn("editor_state", false), graph.Link("background", "IMAGE", "of the preview").AsOptional(),
				graph.Link("bboxes", "BOUNDING_BOX,ARRAY,STRING", "replace what is drawn when they change").AsOptional(),
				drawn("last_incoming", true).AsOptional(),
			},
			Outputs: []graph.Slot{
				{Name: "preview", Type: "IMAGE"}, {Name: "bboxes", Type: "BOUNDING_BOX"}, {Name: "elements", Type: "ARRAY"},
			},
			Run: createBoundingBoxes,
		},
		{
			Name: "Flux3LayoutPrompt", Display: "FLUX 3 Image Layout Prompt", Module: "comfy_extras.nodes_flux",
			Category: "model/conditioning/flux", Description: "Appends to a prompt where its elements, <obj_1> and so on, are.",
			Inputs: []graph.Input{
				graph.Number("prompt", "STRING", "", "default", "", "multiline", true, "dynamicPrompts", true),
				graph.Link("element", "ARRAY", "elements of Create Bounding Boxes").AsOptional(),
			},
			Outputs: []graph.Slot{{Name: "prompt", Type: "STRING"}}, Run: layoutPrompt,
		},
	}
}

// region is a box as the editor draws it, in parts of the canvas. Its width and height may be negative.
type region struct {
	x, y, w, h       float64
	kind, text, desc string
	palette          []string
}

func createBoundingBoxes(c *graph.Call) ([]any, error) {
	width, height := c.Whole("width"), c.Whole("height")
	incoming, err := incomingBoxes(c.Raw("bboxes"), width, height)
	if err != nil {
		return nil, err
	}
	source, _ := c.Raw("editor_state").([]any)
	applied, _ := c.Raw("last_incoming").([]any)
	if len(incoming) > 0 && string(pyjson.Dump(incoming)) != string(pyjson.Dump(applied)) {
		source = incoming
	}
	regions, err := regionsOf(source, width, height)
	if err != nil {
		return nil, err
	}
	c.Show("dims", []any{int64(width), int64(height)})
	if len(incoming) > 0 {
		c.Show("input_bboxes", incoming)
	}
	boxes, elements := []any{}, value.Array{}
	for _, r := range regions {
		x, y, w, h := r.x, r.y, r.w, r.h
		if w < 0 {
			x, w = x+w, -w
		}
		if h < 0 {
			y, h = y+h, -h
		}
		in := func(part float64, side int) int64 { return int64(rounded(part * float64(side))) }
		boxes = append(boxes, boxOf(in(x, width), in(y, height), in(w, width), in(h, height)))
		elements = append(elements, r.element())
	}
	frames := value.Boxes{}
	if len(boxes) > 0 {
		frames = append(frames, boxes)
	}
	preview, err := preview(c, regions, width, height)
	return []any{preview, frames, elements}, err
}

func boxOf(x, y, w, h any) *pyjson.Object {
	return pyjson.NewObject("x", x, "y", y, "width", w, "height", h)
}

// coordinate returns a finite number, and false for other values. nil is 0.
func coordinate(v any) (float64, bool) {
	switch n := v.(type) {
	case nil:
		return 0, true
	case int64:
		return float64(n), true
	case uint64:
		return float64(n), true
	case float64:
		return n, !math.IsNaN(n) && !math.IsInf(n, 0)
	}
	return 0, false
}

// regionsOf reads boxes {x, y, width, height, metadata} in pixels; items that are no objects are left out.
func regionsOf(boxes []any, width, height int) (out []region, err error) {
	for _, b := range boxes {
		o, ok := b.(*pyjson.Object)
		if !ok {
			continue
		}
		var r region
		for name, to := range map[string]*float64{"x": &r.x, "width": &r.w, "y": &r.y, "height": &r.h} {
			v, ok := coordinate(o.At(name))
			if !ok {
				return nil, fault.Bad("editor_state", "%s of a box is %s, want a number", name,
					pyjson.Excerpt(pyjson.Repr(o.At(name))))
			}
			side := width
			if name == "y" || name == "height" {
				side = height
			}
			*to = v / float64(side)
		}
		meta := o.In("metadata")
		r.kind, _ = meta.At("type").(string)
		r.text, _ = meta.At("text").(string)
		r.desc, _ = meta.At("desc").(string)
		colours, _ := meta.At("palette").([]any)
		for _, v := range colours {
			if colour, ok := v.(string); ok && colour != "" {
				r.palette = append(r.palette, colour)
			}
		}
		out = append(out, r)
	}
	return out, nil
}

// element describes a region as prompts do: its box is [top, left, bottom, right] in thousandths.
func (r *region) element() *pyjson.Object {
	grid := func(v float64) int64 { return int64(max(0, min(1000, rounded(v*1000)))) }
	top, left, bottom, right := grid(r.y), grid(r.x), grid(r.y+r.h), grid(r.x+r.w)
	o := pyjson.NewObject("type", "obj",
		"bbox", []any{min(top, bottom), min(left, right), max(top, bottom), max(left, right)})
	if r.kind == "text" {
		o.Set("type", "text")
		o.Set("text", r.text)
	}
	o.Set("desc", r.desc)
	var colours []any
	for _, c := range r.palette[:min(5, len(r.palette))] {
		colours = append(colours, pyjson.Upper(c))
	}
	if len(colours) > 0 {
		o.Set("color_palette", colours)
	}
	return o
}

// incomingBoxes reads the input bboxes: boxes in pixels, elements of prompts, one of them, a list for each picture, of
// which the first counts, or any of these as JSON.
func incomingBoxes(v any, width, height int) ([]any, error) {
	const field = "bboxes"
	switch x := v.(type) {
	case value.Boxes:
		v = []any(x)
	case value.Array:
		v = []any(x)
	case string:
		if strings.TrimSpace(x) == "" {
			return nil, nil
		}
		var err error
		if v, err = pyjson.Decode([]byte(x)); err != nil {
			return nil, fault.Bad(field, "is not valid JSON: %v", err)
		}
	}
	list, ok := v.([]any)
	switch o, one := v.(*pyjson.Object); {
	case v == nil:
		return nil, nil
	case one:
		list = []any{o}
	case !ok:
		return nil, fault.Bad(field, "%s is no list of boxes or elements", pyjson.Excerpt(pyjson.Repr(v)))
	case len(list) == 0:
		return nil, nil
	}
	switch first := list[0].(type) {
	case []any:
		return plainBoxes(first), nil
	case *pyjson.Object:
		if coordinates, ok := first.At("bbox").([]any); ok && len(coordinates) == 4 {
			return elementBoxes(list, width, height)
		}
		lacks := func(name string) bool { _, ok := first.Get(name); return !ok }
		if !slices.ContainsFunc([]string{"x", "y", "width", "height"}, lacks) {
			return plainBoxes(list), nil
		}
	}
	return nil, fault.Bad(field, "%s is neither a box {x, y, width, height} nor an element with a bbox",
		pyjson.Excerpt(pyjson.Repr(list[0])))
}

func plainBoxes(list []any) (out []any) {
	for _, v := range list {
		o, ok := v.(*pyjson.Object)
		if !ok {
			continue
		}
		or := func(name string) any {
			if v, ok := o.Get(name); ok {
				return v
			}
			return int64(0)
		}
		b := boxOf(or("x"), or("y"), or("width"), or("height"))
		if meta, ok := o.At("metadata").(*pyjson.Object); ok {
			b.Set("metadata", meta)
		}
		out = append(out, b)
	}
	return out
}

func elementBoxes(list []any, width, height int) (out []any, err error) {
	for _, v := range list {
		o, ok := v.(*pyjson.Object)
		if !ok {
			continue
		}
		coordinates, _ := o.At("bbox").([]any)
		var at [4]float64
		for i := range at {
			ok := false
			if len(coordinates) == 4 {
				at[i], ok = coordinate(coordinates[i])
			}
			if !ok {
				return nil, fault.Bad("bboxes", "bbox of an element is %s, want [ymin, xmin, ymax, xmax]",
					pyjson.Excerpt(pyjson.Repr(o.At("bbox"))))
			}
			at[i] /= 1000
		}
		in := func(part float64, side int) int64 { return int64(rounded(part * float64(side))) }
		b := boxOf(in(min(at[1], at[3]), width), in(min(at[0], at[2]), height), in(math.Abs(at[3]-at[1]), width),
			in(math.Abs(at[2]-at[0]), height))
		meta := pyjson.NewObject("type", "obj", "text", "", "desc", "", "palette", []any{})
		if o.At("type") == "text" {
			meta.Set("type", "text")
			if text, ok := o.Get("text"); ok {
				meta.Set("text", text)
			}
		}
		if desc, ok := o.Get("desc"); ok {
			meta.Set("desc", desc)
		}
		if colours, ok := o.At("color_palette").([]any); ok {
			meta.Set("palette", colours)
		}
		b.Set("metadata", meta)
		out = append(out, b)
	}
	return out, nil
}

// preview draws the regions and their colours on the darkened background, at most 1024 pixels long. Unlike ComfyUI it
// writes no labels.
func preview(c *graph.Call, regions []region, width, height int) (*picture.Image, error) {
	const longest, dim = 1024, 0.25
	var back *picture.Image
	if c.Given("background") {
		back = c.Image("background").Items(0, 1).First(3)
		width, height = back.X, back.Y
	}
	scale := min(1, longest/float64(max(width, height)))
	wide, high := max(1, rounded(float64(width)*scale)), max(1, rounded(float64(height)*scale))
	im := &picture.Image{B: 1, Y: high, X: wide, C: 3, Data: slices.Repeat([]float32{32. / 255}, 3*wide*high)}
	if back != nil {
		var err error
		if back, err = fitted(back, wide, high, "lanczos", resample.CropDisabled, "background"); err != nil {
			return nil, err
		}
		for i, v := range back.Data {
			im.Data[i] = float32(math.Floor(dim*math.Floor(float64(min(1, max(0, v)))*255+1e-3))) / 255
		}
	}
	for i := range regions {
		regions[i].draw(im)
	}
	return im, nil
}

// draw draws the outline of a region, 2 pixels wide, and up to five colours at its top.
func (r *region) draw(im *picture.Image) {
	edge := func(part float64, side int) int { return max(0, min(side, rounded(part*float64(side)))) }
	x1, x2, y1, y2 := edge(r.x, im.X), edge(r.x+r.w, im.X), edge(r.y, im.Y), edge(r.y+r.h, im.Y)
	x1, x2, y1, y2 = min(x1, x2), max(x1, x2), min(y1, y2), max(y1, y2)
	fill := func(x1, y1, x2, y2 int, colour [3]float32) { // all inclusive
		for y := max(0, min(y1, y2)); y <= min(im.Y-1, max(y1, y2)); y++ {
			for x := max(0, x1); x <= min(im.X-1, x2); x++ {
				copy(im.Data[3*(y*im.X+x):], colour[:])
			}
		}
	}
	line := [3]float32{140. / 255, 140. / 255, 140. / 255}
	if len(r.palette) > 0 {
		line = colourOf(r.palette[0])
	}
	for i := range 2 {
		fill(x1, y1+i, x2, y1+i, line)
		fill(x1, y2-i, x2, y2-i, line)
		fill(x2-i, y1+2, x2-i, y2-1, line)
		fill(x1+i, y1+2, x1+i, y2-1, line)
	}
	colours := r.palette[:min(5, len(r.palette))]
	if x2-x1 <= 2 {
		return
	}
	deep := max(5, max(10, rounded(float64(im.Y)/64))/2)
	at := func(i int) int { return x1 + rounded(float64(i)*float64(x2-x1)/float64(len(colours))) }
	for i, c := range colours {
		fill(at(i), y1, at(i+1), y1+deep, colourOf(c))
	}
}

// colourOf reads #RRGGBB, white if it is none.
func colourOf(hex string) (out [3]float32) {
	hex = strings.TrimLeft(hex, "#")
	n, err := strconv.ParseUint(hex, 16, 24)
	if err != nil || len(hex) != 6 {
		n = 0xffffff
	}
	for i := range out {
		out[i] = float32(n>>(16-8*i)&0xff) / 255
	}
	return out
}

// layoutPrompt appends a table of the elements to the prompt, as the authors of FLUX.3 write it: the prompt, a blank,
// and JSON. That ComfyUI writes it like this, and a text to be shown in front of its description, is inferred.
func layoutPrompt(c *graph.Call) ([]any, error) {
	prompt, rows := c.Str("prompt"), []string{}
	if !c.Given("element") {
		return []any{prompt}, nil
	}
	for _, v := range graph.Arg[value.Array](c, "element") {
		o, ok := v.(*pyjson.Object)
		if !ok {
			continue
		}
		desc, _ := o.At("desc").(string)
		if text, ok := o.At("text").(string); ok && text != "" {
			desc = strings.TrimSuffix(`"`+text+`" `+desc, " ")
		}
		rows = append(rows, fmt.Sprintf(`{"id": "obj_%d", "bbox": %s, "desc": %s}`, len(rows)+1, pyjson.Dump(o.At("bbox")),
			quoted(desc)))
	}
	if len(rows) == 0 {
		return []any{prompt}, nil
	}
	return []any{prompt + " [" + strings.Join(rows, ", ") + "]"}, nil
}

// quoted returns a text as JSON with all letters as they are.
func quoted(text string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(text) // a text can be encoded
	return strings.TrimSpace(b.String())
}

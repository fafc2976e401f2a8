package control_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/ref"
	"patchbay/engine/safetensors"
	"patchbay/models"
	"patchbay/models/control"
	"patchbay/models/dit"
	"patchbay/models/goldenrun"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
)

// run is a recorded evaluation of a control net (tests/golden/modern/README.md, section 8).
type run struct {
	X         []int            `json:"x"`
	Hint      []int            `json:"hint"`
	Context   []int            `json:"context"`
	Y         []int            `json:"y"`
	Timesteps []float32        `json:"timesteps"`
	Guidance  []float32        `json:"guidance"`
	Type      []int            `json:"control_type"`
	Feeds     map[string][]int `json:"which_output_each_main_block_gets"`
	Qwen      []int            `json:"which_output_each_of_60_main_blocks_gets"`
}

// open opens a recorded net with the config recorded for it.
func open(t *testing.T, name string) *control.Net {
	t.Helper()
	set, config, err := goldenweights.Set(name)
	if err != nil {
		t.Fatal(err)
	}
	var c map[string]any
	if err := json.Unmarshal(config, &c); err != nil {
		t.Fatal(err)
	}
	// what names and shapes do not determine for the tiny nets, as in the base models
	c["axes_dim"], c["axes_dims_rope"] = []int{8, 16, 16}, []int{8, 16, 16}
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	if name == "cn-fun-a" {
		base, _, err := goldenweights.Set("qwen-a")
		if err == nil {
			set, err = control.WithBorrowed(models.Families(), set, base)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	n, err := control.Open(models.Families(), set, map[string]string{"config": string(text)})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// item returns item i of a recorded input.
func item(name string, shape []int, i int) []float32 {
	size := 1
	for _, s := range shape {
		size *= s
	}
	return golden.Input(name, size)[i*size/shape[0] : (i+1)*size/shape[0]]
}

// tokens returns the 2x2 tokens of a latent [C, Y, X] with odd sides padded circularly or with zeros.
func tokens(v []float32, c, y, x int, zeros bool) []float32 {
	var out []float32
	for ty := range (y + 1) / 2 {
		for tx := range (x + 1) / 2 {
			for ci := range c {
				for k := range 4 {
					row, col := 2*ty+k/2, 2*tx+k%2
					if zeros && (row >= y || col >= x) {
						out = append(out, 0)
						continue
					}
					out = append(out, v[(ci*y+row%y)*x+col%x])
				}
			}
		}
	}
	return out
}

func TestOutputsMatchGolden(t *testing.T) {
	for file, names := range map[string][]string{
		"control":      {"cn-union-a/0", "cn-union-a/1", "cn-xlabs-a/0", "cn-mistoline-a/0"},
		"control_qwen": {"cn-qwen-a/0", "cn-qwen-inpaint-a/0"},
	} {
		var runs map[string]run
		if err := golden.JSON("modern/"+file+".json", &runs); err != nil {
			t.Fatal(err)
		}
		results, err := golden.Open("modern/" + file + ".safetensors")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = results.Close() }()
		for _, name := range names {
			for _, ops := range []engine.Ops{ref.New(), goldenrun.NewOps()} {
				t.Run(name+"/"+ops.Name(), func(t *testing.T) { compare(t, ops, name, runs[name], results) })
			}
		}
	}
}

// TestFunNetStartsAsItsModel checks that a net that borrows its first layers from its model gives ComfyUI's outputs
// after each block, for latents with odd sides too, and that it cannot be loaded without the weights of the model.
func TestFunNetStartsAsItsModel(t *testing.T) {
	const name = "cn-fun-a/0"
	results, err := golden.Open("modern33/hints.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = results.Close() }()
	r := run{
		X: []int{2, 16, 5, 7}, Hint: []int{2, 16, 5, 7}, Context: []int{2, 6, 56}, Timesteps: []float32{0.75, 0.25},
	}
	for _, ops := range []engine.Ops{ref.New(), goldenrun.NewOps()} {
		compare(t, ops, name, r, results)
	}
	want := [][]int{{0}, {12}, {24}, {36}, {48}}
	base := &dit.Spec{Blocks: slices.Repeat([]dit.BlockSpec{{Kind: dit.Double}}, 60)}
	if got := open(t, "cn-fun-a").Feeds(base); !slices.EqualFunc(got, want, slices.Equal) {
		t.Errorf("outputs go behind blocks %v, want %v", got, want)
	}
	set, _, err := goldenweights.Set("cn-fun-a")
	if err != nil {
		t.Fatal(err)
	}
	config := map[string]string{"config": `{"axes_dims_rope": [8, 16, 16]}`}
	n, err := control.Open(models.Families(), set, config)
	if err != nil {
		t.Fatal(err)
	}
	if m, err := n.Load(goldenrun.NewOps(), dit.Held{}); err == nil {
		m.Close()
		t.Error("a net without its beginning was loaded")
	}
}

// TestNetsHaveWhatTheyBorrow checks that a net has its own copy of the tensors that it borrows from the model, and that
// it takes as many bytes as forecast, apart from the alignment of small tensors.
func TestNetsHaveWhatTheyBorrow(t *testing.T) {
	n, ops := open(t, "cn-fun-a"), &counting{Ops: ref.New()}
	m, err := n.Load(ops, dit.Held{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	file, _, err := goldenweights.Set("cn-fun-a")
	if err != nil {
		t.Fatal(err)
	}
	most := int64(64 * len(file.Names()))
	if more := ops.bytes - file.Bytes() - n.Borrowed; n.Borrowed <= most || more < 0 || more > most {
		t.Errorf("%d bytes are taken, the net has %d of its own and borrows %d", ops.bytes, file.Bytes(), n.Borrowed)
	}
}

// counting counts the bytes that are packed or allocated.
type counting struct {
	engine.Ops
	bytes int64
}

func (c *counting) Pack(m engine.Matrix, n int) (*engine.Packed, error) {
	p, err := c.Ops.Pack(m, n)
	if err == nil {
		c.bytes += int64(len(p.Buf.Host))
	}
	return p, err
}

func (c *counting) Alloc(n int) (engine.Buf, error) {
	c.bytes += int64(n)
	return c.Ops.Alloc(n)
}

func compare(t *testing.T, ops engine.Ops, name string, r run, results *safetensors.File) {
	t.Helper()
	n := open(t, name[:len(name)-2])
	loaded, err := n.Load(ops, dit.Held{})
	if err != nil {
		t.Fatal(err)
	}
	defer loaded.Close()
	m := loaded.(dit.Control)
	env, err := goldenrun.NewEnv(ops, nil)
	if err != nil {
		t.Fatal(err)
	}
	var eyes *control.Picture
	if n.ReadsPicture {
		set, _, err := goldenweights.Set(name[:len(name)-2])
		if err != nil {
			t.Fatal(err)
		}
		if eyes, err = control.OpenPicture(ops, set); err != nil {
			t.Fatal(err)
		}
		defer eyes.Close()
	}
	b, c, y, x := r.X[0], r.X[1], r.X[len(r.X)-2], r.X[len(r.X)-1]
	grid := n.Spec.Tokens(y, x)
	var entries []dit.Entry
	var latents []float32
	for i := range b {
		e := dit.Entry{Context: dit.Array{Rows: r.Context[1], Cols: r.Context[2], Data: item(name+"/context", r.Context, i)}}
		hint, channels := item(name+"/hint", r.Hint, i), r.Hint[1]
		if n.ReadsPicture {
			hint, channels = seen(t, eyes, ops, name, r, i), n.Hint
		}
		e.Hint = dit.Array{Rows: grid.Tokens(), Cols: 4 * channels, Data: tokens(hint, channels, y, x, n.Spec.WholeHint)}
		if r.Y != nil {
			e.Pooled = item(name+"/y", r.Y, i)
		}
		if r.Guidance != nil {
			e.Guidance = &r.Guidance[i]
		}
		if len(r.Type) > 0 {
			e.Mode = r.Type[0] + 1
		}
		entries, latents = append(entries, e), append(latents, tokens(item(name+"/x", r.X, i), c, y, x, false)...)
	}
	p, err := goldenrun.Prepare(env, m, entries, grid)
	if err != nil {
		t.Fatal(err)
	}
	mod := goldenrun.Modulate(env, m, p, r.Timesteps)
	rows := dit.Rows{Text: dit.Range{End: p.Lt}, Image: dit.Range{End: grid.Tokens()}}
	s := dit.NewState(env, &n.Spec, p, mod, 0, b, rows, rows)
	in := env.Arena.Alloc(env.DType, b, grid.Tokens(), 4*c)
	ops.Upload(in, latents)
	m.Embed(env, s, in)
	gate := env.Arena.Alloc(engine.F32, 1, n.Spec.Width)
	ops.Upload(gate, slices.Repeat([]float32{1}, n.Spec.Width))
	double := 0
	for k := range n.Spec.Blocks {
		m.Block(env, k, s, engine.Tensor{})
		out := env.Arena.Alloc(env.DType, b, grid.Tokens(), n.Spec.Width)
		m.Output(env, k, s, out, gate)
		got := make([]float32, out.Len())
		if err := ops.Download(got, out).Wait(); err != nil {
			t.Fatal(err)
		}
		part := fmt.Sprintf("%s#input.%d", name, k)
		if n.Spec.Blocks[k].Kind == dit.Single {
			part = fmt.Sprintf("%s#output.%d", name, k-double)
		} else {
			double++
		}
		e, ok := results.Entry(part)
		if !ok {
			t.Fatalf("nothing is recorded as %s", part)
		}
		want, err := e.F32()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := goldenrun.Compare(got, want, goldenrun.Rel); err != nil {
			t.Errorf("%s: %v", part, err)
		}
	}
}

// seen returns the rows that a net that reads images computes from recorded hint i.
func seen(t *testing.T, eyes *control.Picture, ops engine.Ops, name string, r run, i int) []float32 {
	t.Helper()
	y, x := r.Hint[2], r.Hint[3]
	planes := golden.Fill("input:"+name+"/hint", r.Hint[0]*3*y*x, 1, 0.5)[i*3*y*x : (i+1)*3*y*x]
	rgb := make([]float32, len(planes))
	for k, v := range planes {
		rgb[k%(y*x)*3+k/(y*x)] = v
	}
	take := func(n int) (*engine.Arena, error) {
		buf, err := ops.Alloc(n)
		return engine.NewArena("hint", buf, n), err
	}
	out, err := eyes.Read(dit.TaskEnv{Ops: ops, Take: take}, rgb, y, x)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestFeedsAreComfyUIs checks that the outputs of a net go to the same blocks of the released models as in ComfyUI.
func TestFeedsAreComfyUIs(t *testing.T) {
	blocks := func(kind dit.BlockKind, n int) []dit.BlockSpec {
		return slices.Repeat([]dit.BlockSpec{{Kind: kind}}, n)
	}
	check := func(name string, base *dit.Spec, want map[int]int) {
		t.Helper()
		got := map[int]int{}
		for k, list := range open(t, name).Feeds(base) {
			for _, b := range list {
				got[b] = k
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s feeds %v, want %v", name, got, want)
		}
	}
	var flux, qwen map[string]run
	for file, into := range map[string]*map[string]run{"control": &flux, "control_qwen": &qwen} {
		if err := golden.JSON("modern/"+file+".json", into); err != nil {
			t.Fatal(err)
		}
	}
	for name, double := range map[string]int{"cn-union-a": 2, "cn-xlabs-a": 2, "cn-mistoline-a": 1} {
		want := map[int]int{}
		for b, k := range flux[name+"/0"].Feeds["input"] {
			want[b] = k
		}
		for b, k := range flux[name+"/0"].Feeds["output"] {
			want[19+b] = double + k
		}
		check(name, &dit.Spec{Blocks: append(blocks(dit.Double, 19), blocks(dit.Single, 38)...)}, want)
	}
	for _, name := range []string{"cn-qwen-a", "cn-qwen-inpaint-a"} {
		want := map[int]int{}
		for b, k := range qwen[name+"/0"].Qwen {
			want[b] = k
		}
		check(name, &dit.Spec{Blocks: blocks(dit.Double, 60)}, want)
	}
}

// TestOtherNetsAreNamed checks that the errors for unsupported kinds of nets say what they look like.
func TestOtherNetsAreNamed(t *testing.T) {
	set, _, err := goldenweights.Set("qwen-a")
	if err != nil {
		t.Fatal(err)
	}
	const none = "not a control net"
	if _, err := control.Open(models.Families(), set, nil); err == nil || !strings.Contains(err.Error(), none) {
		t.Errorf("qwen-a: %v, want an error with %q", err, none)
	}
	for key, want := range map[string]string{
		"zero_convs.0.0.weight": "Stable Diffusion 1",
		"other":                 "an unknown kind",
	} {
		one := weights.Stored{DType: engine.F32, Shape: []int{1}}
		set := map[string]weights.Stored{key: one}
		if key == "other" {
			set["controlnet_blocks.0.weight"] = one
		}
		_, err := control.Open(models.Families(), weights.FromMap(set), nil)
		supported := "flux (InstantX, union, inpaint, XLabs, MistoLine), sd3 (diffusers, SD3.5 large of Stability AI), " +
			"hunyuandit (1.2 of Tencent), qwenimage (InstantX, inpaint, Fun)"
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasSuffix(err.Error(), supported) {
			t.Errorf("%s: %v, want an error with %q that ends with %q", key, err, want, supported)
		}
	}
}

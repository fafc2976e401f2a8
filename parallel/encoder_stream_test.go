package parallel

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/fault"
	"patchbay/models/dit"
	"patchbay/models/text"
	"patchbay/models/tokenizer"
	"patchbay/models/weights"
	"patchbay/models/weights/goldenweights"
	"patchbay/parallel/plan"
	"patchbay/tests/golden"
)

// tall returns an encoder with so many layers, which repeat those of a recorded one.
func tall(t *testing.T, name, list string, layers int) *weights.Set {
	t.Helper()
	set, _, err := goldenweights.Set(name)
	if err != nil {
		t.Fatal(err)
	}
	all, n := map[string]weights.Stored{}, set.Count(list)
	for _, name := range set.Names() {
		w, _ := set.Get(name)
		all[name] = w
		var i int
		var rest string
		if in, ok := strings.CutPrefix(name, list+"."); !ok {
			continue
		} else if _, err := fmt.Sscanf(in, "%d.%s", &i, &rest); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(rest, "relative_attention_bias") {
			continue // of the first layer alone
		}
		for j := i + n; j < layers; j += n {
			all[fmt.Sprintf("%s.%d.%s", list, j, rest)] = w
		}
	}
	return weights.FromMap(all)
}

// TestEncodersBringLayers checks that text encoders which may take less than their weights keep no more, and give the
// bits of whole ones, twice, with adapters and split over ranks. Each layer is read once for each run.
func TestEncodersBringLayers(t *testing.T) {
	encodersBringLayers(t, newEngine(t), 8, "qwen3")
	encodersBringLayers(t, newEngine(t), 8, "t5")
	encodersBringLayers(t, newEngine(t), 8, "clip_l")
	encodersBringLayers(t, newEngine(t), 8, "bert")
}

// leastRoom returns what all that is outside of a list of layers takes, and two of these layers, in bytes.
func leastRoom(set *weights.Set, list string) int64 {
	wide := set.Unrounded()
	outside, largest := int64(0), int64(0)
	for i := range wide.Count(list) {
		largest = max(largest, wide.Prefix(fmt.Sprintf("%s.%d.", list, i)).Bytes())
	}
	for _, name := range wide.Names() {
		if w, _ := wide.Get(name); !strings.HasPrefix(name, list+".") {
			outside += w.Bytes()
		}
	}
	return (outside+2*largest)*wide.WideBytes()/wide.Bytes() + 1
}

// refused checks that a network in too little memory was refused because of it, with what to change.
func refused(t *testing.T, l *Workspace, what string, err error) {
	t.Helper()
	flag := "--memory"
	if _, ok := l.Ops.(engine.Located); ok {
		flag = "--device-memory"
	}
	if !fault.Is(err, fault.OutOfMemory) || !strings.Contains(err.Error(), flag) {
		t.Errorf("%s without room for two layers: %v, want out_of_memory and %s", what, err, flag)
	}
}

// TestPictureEncodersBringLayers checks that picture encoders which may take less than their weights keep no more, and
// give the states of whole ones, bit by bit. Each layer is read once for each picture.
func TestPictureEncodersBringLayers(t *testing.T) {
	pictureEncodersBringLayers(t, newEngineOf(t, narrowOps))
}

func pictureEncodersBringLayers(t *testing.T, e *Pool) {
	t.Helper()
	const list = "vision_model.encoder.layers"
	for _, name := range []string{"siglip-a", "clipvision-a"} {
		_, config, err := goldenweights.Set(name)
		if err != nil {
			t.Fatal(err)
		}
		set := tall(t, name, list, 8)
		err = e.Do(t.Context(), "pictures", func(l *Workspace) error {
			open := func(room int64) *text.PictureEncoder {
				eyes, err := text.OpenPictureEncoder(l.Ops, set, config, room)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(eyes.Close)
				return eyes
			}
			whole := open(0)
			if open(whole.Bytes() * 2).Brings() {
				t.Errorf("%s: layers are brought although all fit", name)
			}
			pixels := golden.Fill("picture", 3*whole.Size*whole.Size, 1, 0)
			want, inner, err := whole.See(text.Env{Ops: l.Ops}, pixels)
			if err != nil {
				return err
			}
			for _, room := range []int64{whole.Bytes() * 3 / 4, leastRoom(set, list)} {
				part, counts := open(room), map[int]int{}
				env := text.Env{Ops: l.Ops, Bring: countReads(counts, l.Bring(l.Ops))}
				for range 2 {
					clear(counts)
					got, deep, err := part.See(env, pixels)
					if err != nil {
						return err
					}
					if at := firstDifference(got, want); at >= 0 || len(want) == 0 || !slices.Equal(deep, inner) {
						t.Errorf("%s in %d bytes: element %d of %d differs from the whole encoder", name, room, at, len(want))
					}
					checkReads(t, name, counts, 1)
				}
				if kept := part.Bytes(); !part.Brings() || kept > room {
					t.Errorf("%s: keeps %d bytes in %d, and brings layers: %v", name, kept, room, part.Brings())
				}
				if _, _, err := part.See(text.Env{Ops: l.Ops}, pixels); err == nil {
					t.Errorf("%s: layers came from nowhere", name)
				}
			}
			_, err = text.OpenPictureEncoder(l.Ops, set, config, 1)
			refused(t, l, name, err)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// checkReads checks that each layer that was brought was read as often as there were runs, and one ahead at most.
func checkReads(t *testing.T, what string, counts map[int]int, runs int) {
	t.Helper()
	total := 0
	for _, n := range counts {
		total += n
	}
	if n := len(counts); n == 0 || total < runs*n || total > runs*n+1 {
		t.Errorf("%s: reads by layer %v, want %d of each and one ahead", what, counts, runs)
	}
}

// countReads counts the reads of each layer that bring brings.
func countReads(counts map[int]int, bring func(*dit.Shards) (func(int) error, func(), error),
) func(*dit.Shards) (func(int) error, func(), error) {
	return func(shards *dit.Shards) (func(int) error, func(), error) {
		counted := *shards
		counted.Reader = func(beside func() (engine.Ops, error)) (func(int, []byte, int) error, error) {
			read, err := shards.Reader(beside)
			return func(unit int, dst []byte, at int) error {
				if at == 0 { // one at a time, of a device piece by piece
					counts[unit]++
				}
				return read(unit, dst, at)
			}, err
		}
		return bring(&counted)
	}
}

// TestVisionTowersBringBlocks checks that vision towers which may take less than their weights keep no more, and give
// the rows of whole ones, bit by bit, of pictures of different sizes. Each block is read once for each picture.
func TestVisionTowersBringBlocks(t *testing.T) {
	visionTowersBringBlocks(t, newEngineOf(t, narrowOps), 8)
}

func visionTowersBringBlocks(t *testing.T, e *Pool, blocks int) {
	t.Helper()
	for _, c := range []struct {
		name, config string
		unit         int // pixels of a merged patch
	}{
		{"qwen25vl-a", "", 28}, {"krea2-qwen3vl-a", `, "deepstack_visual_indexes": [0, 3, 6]`, 32},
	} {
		set := tall(t, c.name, "visual.blocks", blocks)
		err := e.Do(t.Context(), "vision", func(l *Workspace) error {
			open := func(room int64) text.VisionTower {
				eyes, err := text.OpenVisionTower(l.Ops, set, []byte(`{"vision": {"num_heads": 2`+c.config+`}}`), room)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(eyes.Close)
				return eyes
			}
			whole, counts := open(0), map[int]int{}
			if whole.Brings() || open(whole.Bytes()).Brings() {
				t.Errorf("%s: blocks are brought although all fit", c.name)
			}
			_, err := text.OpenVisionTower(l.Ops, set, []byte(`{"vision": {"num_heads": 2`+c.config+`}}`), 1)
			refused(t, l, c.name, err)
			least := leastRoom(set.Prefix("visual."), "blocks")
			for _, room := range []int64{(2*whole.Bytes() + least) / 3, (whole.Bytes() + least) / 2, least} {
				part := open(room)
				for _, size := range [][2]int{{2, 3}, {5, 4}} {
					p := text.Picture{Y: size[0] * c.unit, X: size[1] * c.unit}
					p.Data = golden.Fill("picture", p.Y*p.X*3, 1, 0.5)
					want, _, _, err := whole.See(text.Env{Ops: l.Ops}, p)
					if err != nil {
						return err
					}
					clear(counts)
					got, y, x, err := part.See(text.Env{Ops: l.Ops, Bring: countReads(counts, l.Bring(l.Ops))}, p)
					if err != nil {
						return err
					}
					flat, all := slices.Concat(got...), slices.Concat(want...)
					if at := firstDifference(flat, all); at >= 0 || len(all) == 0 || y != size[0] || x != size[1] {
						t.Errorf("%s in %d bytes: %d x %d rows, element %d of %d differs from the whole tower", c.name, room, y, x,
							at, len(all))
					}
					checkReads(t, c.name, counts, 1)
					if kept := part.Bytes(); !part.Brings() || kept > room && len(counts) < blocks {
						t.Errorf("%s: keeps %d bytes in %d, and brings only %d blocks", c.name, kept, room, len(counts))
					}
				}
				if _, _, _, err := part.See(text.Env{Ops: l.Ops}, text.Picture{
					Y: c.unit, X: c.unit, Data: make([]float32, 3*c.unit*c.unit),
				}); err == nil {
					t.Errorf("%s: blocks came from nowhere", c.name)
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func encodersBringLayers(t *testing.T, e *Pool, layers int, kind string) {
	t.Helper()
	var chunk []tokenizer.Token
	for _, id := range []int{5, 7, 33, 41, 1, 0, 2} {
		chunk = append(chunk, tokenizer.Token{ID: id, Weight: 1})
	}
	chunks := [][]tokenizer.Token{chunk, chunk[:4]} // two runs
	for _, c := range []struct {
		kind, name, list, matrix string
		form                     text.Form
	}{
		{"qwen3", "qwen3-a", "model.layers", "self_attn.q_proj", text.Form{Taps: []int{0, 3, layers}}},
		{"t5", "t5-tiny", "encoder.block", "layer.0.SelfAttention.q", text.Form{}},
		{"clip_l", "clip-l-tiny", "text_model.encoder.layers", "self_attn.q_proj", text.Form{Layer: -2, Project: true}},
		{"bert", "bert-tiny", "bert.encoder.layer", "attention.self.query", text.Form{}},
	} {
		if c.kind != kind {
			continue
		}
		set := tall(t, c.name, c.list, layers)
		err := e.Do(t.Context(), "encoder", func(l *Workspace) error {
			open := func(room int64) text.Net {
				parts, err := text.OpenParts([]engine.Ops{l.Ops}, c.kind, set, nil, room)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(parts[0].Close)
				return parts[0]
			}
			counts := map[int]int{} // of reads, by layer
			env := text.Env{Ops: l.Ops, Bring: countReads(counts, l.Bring(l.Ops))}
			adapt := func(n text.Net) text.Net {
				name := fmt.Sprintf("%s.3.%s", c.list, c.matrix)
				rows, columns := set.Dim(name+".weight", 0), set.Dim(name+".weight", 1)
				with, err := n.Adapt(l.Ops, []weights.LowRank{{
					Name: name, Scale: 0.1, Down: weights.Floats(golden.Input(name+"down", 3*columns), 3, columns),
					Up: weights.Floats(golden.Input(name+"up", rows*3), rows, 3),
				}})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(with.Close)
				return with
			}
			whole := open(0)
			if open(whole.Bytes()).Brings() {
				t.Errorf("%s: layers are brought although all fit", c.kind)
			}
			_, err := text.OpenParts([]engine.Ops{l.Ops}, c.kind, set, nil, 1)
			refused(t, l, c.kind, err)
			least := leastRoom(set, c.list)
			for _, room := range []int64{(9*whole.Bytes() + least) / 10, (whole.Bytes() + least) / 2, least} {
				part := open(room)
				for i, pair := range [][2]text.Net{{part, whole}, {adapt(part), adapt(whole)}} {
					want, err := pair[1].Encode(text.Env{Ops: l.Ops}, chunks, c.form)
					if err != nil {
						return err
					}
					for range 2 {
						clear(counts)
						got, err := pair[0].Encode(env, chunks, c.form)
						if err != nil {
							return err
						}
						if at := firstDifference(got.Context.Data, want.Context.Data); at >= 0 || len(want.Context.Data) == 0 ||
							!slices.Equal(got.Pooled, want.Pooled) {
							t.Errorf("%s in %d bytes, case %d: element %d of %d differs from the whole encoder", c.kind, room, i,
								at, len(want.Context.Data))
						}
						checkReads(t, c.kind, counts, 2)
						if kept := part.Bytes(); kept > room && len(counts) < layers {
							t.Errorf("%s: keeps %d bytes in %d, and brings only %d layers", c.kind, kept, room, len(counts))
						}
					}
				}
				if _, err := part.Encode(text.Env{Ops: l.Ops}, chunks, c.form); err == nil {
					t.Errorf("%s: layers came from nowhere", c.kind)
				}
			}
			if c.kind != "qwen3" {
				return nil
			}
			want, err := whole.Encode(text.Env{Ops: l.Ops}, chunks, c.form)
			if err != nil {
				return err
			}
			two := plan.OneRank()
			two.Tensor = 2
			loaders, err := l.Loaders(two)
			if err != nil || len(loaders) == 1 {
				return err // one device
			}
			parts, err := text.OpenParts(loaders, c.kind, set, nil, leastRoom(set, c.list)/2+1)
			if err != nil {
				return err
			}
			return l.Shared("parts", len(parts), func(s Share) error {
				defer parts[s.Rank].Close()
				got, err := parts[s.Rank].Encode(text.Env{Ops: s.Ops, Sum: s.Sum, Bring: l.Bring(s.Ops)}, chunks, c.form)
				if err != nil {
					return err
				}
				if rel := relative(got.Context.Data, want.Context.Data); !(rel <= 1e-5) || !parts[s.Rank].Brings() {
					t.Errorf("part %d differs by %.3g, bound 1e-5; brings layers: %v", s.Rank, rel, parts[s.Rank].Brings())
				}
				return nil
			})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

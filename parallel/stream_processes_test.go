package parallel

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/engine/gguf"
	"patchbay/engine/gguf/ggufwrite"
	"patchbay/engine/ref"
	"patchbay/engine/safetensors"
	"patchbay/models/source"
	"patchbay/models/tiny"
	"patchbay/models/weights"
	"patchbay/parallel/plan"
	"patchbay/parallel/request"
	"patchbay/tests/race"
)

// fileForms returns the forms of model files: types of numbers, quantizations of ComfyUI and types of GGUF.
func fileForms() []string {
	return []string{
		"F32", "F16", "BF16", "float8_e4m3fn", "int8_tensorwise", "convrot", "asym_w4a8_int8", "mxfp8", "nvfp4",
		gguf.Q8v0.String(), gguf.Q4v0.String(),
	}
}

// inForm writes the weights of a tiny model to a file of that form, whose matrices are rounded to it as far as their
// rows allow, and describes it.
func inForm(t *testing.T, name, form string, set *weights.Set, metadata map[string]string) request.Model {
	t.Helper()
	path, file, rounded := filepath.Join(t.TempDir(), name), bytes.Buffer{}, 0
	kind := slices.IndexFunc([]gguf.Type{gguf.Q8v0, gguf.Q4v0}, func(k gguf.Type) bool { return k.String() == form })
	if kind >= 0 {
		rounded = writeGGUF(&file, set, metadata, []gguf.Type{gguf.Q8v0, gguf.Q4v0}[kind])
	} else {
		var entries []safetensors.Tensor
		for _, name := range set.Names() {
			s, _ := set.Get(name)
			list := rounding(name, s, form)
			if entries = append(entries, list...); form == "F32" || list[0].DType != s.DType {
				rounded++
			}
		}
		if err := safetensors.Write(&file, metadata, entries); err != nil {
			t.Fatal(err)
		}
	}
	if rounded < 3 {
		t.Fatalf("only %d tensors of %s are of form %s", rounded, name, form)
	}
	if err := os.WriteFile(path, file.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	f, opened, err := source.Stat(path, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := opened.Close(); err != nil {
		t.Fatal(err)
	}
	w := source.Weights{Model: source.Model{File: f}, Loader: &source.Loader{}}
	return request.Model{Key: w.Key(), Weights: w, WeightBytes: w.Bytes()}
}

// writeGGUF writes a set with its matrices in blocks of that kind, and returns how many are.
func writeGGUF(to *bytes.Buffer, set *weights.Set, metadata map[string]string, kind gguf.Type) (rounded int) {
	words, tensors := map[string]any{}, []ggufwrite.Tensor(nil)
	for key, v := range metadata {
		words[key] = v
	}
	for _, name := range set.Names() {
		s, _ := set.Get(name)
		as := gguf.F32
		if block, _ := kind.Block(); len(s.Shape) == 2 && s.Len()%block == 0 {
			as = kind
			rounded++
		}
		tensors = append(tensors, ggufwrite.Tensor{
			Name: name, Type: as, Shape: s.Shape, Data: ggufwrite.Quantise(as, s.F32()),
		})
	}
	to.Write(ggufwrite.File(words, tensors))
	return rounded
}

// rounding returns a tensor, and what a file has beside it, rounded to a form; unchanged if the form has no room for
// its shape.
func rounding(name string, s weights.Stored, form string) []safetensors.Tensor {
	entry := func(name string, d engine.DType, data []byte, shape ...int) safetensors.Tensor {
		return safetensors.Tensor{Name: name, DType: d, Shape: shape, Data: datafile.Of(data)}
	}
	plain := func(d engine.DType, v []float32) []byte {
		data := make([]byte, len(v)*d.Size())
		engine.Narrow(data, v, d)
		return data
	}
	v := s.F32()
	for _, d := range []engine.DType{engine.F16, engine.BF16} {
		if strings.EqualFold(d.String(), form) {
			return []safetensors.Tensor{entry(name, d, plain(d, v), s.Shape...)}
		}
	}
	layer, matrix := strings.CutSuffix(name, ".weight")
	group, ok := map[string]int{
		"float8_e4m3fn": 1, "int8_tensorwise": 1, "convrot": 16, "asym_w4a8_int8": 16, "mxfp8": 32, "nvfp4": 16,
	}[form]
	if !ok || !matrix || len(s.Shape) != 2 || s.Shape[1]%group != 0 {
		return []safetensors.Tensor{entry(name, engine.F32, plain(engine.F32, v), s.Shape...)}
	}
	n, k, mark := s.Shape[0], s.Shape[1], `{"format": "`+form+`"}`
	number := func(part string, v ...float32) safetensors.Tensor {
		return entry(layer+part, engine.F32, plain(engine.F32, v), len(v))
	}
	var out []safetensors.Tensor
	switch form {
	case "float8_e4m3fn":
		scale := largest(v) / 448
		for i := range v {
			v[i] /= scale
		}
		out = append(out, entry(name, engine.F8E4M3, plain(engine.F8E4M3, v), n, k), number(".weight_scale", scale))
	case "int8_tensorwise", "convrot":
		scales, codes := make([]float32, n), make([]byte, n*k)
		if group > 1 {
			engine.Rotate(v, group)
			mark = fmt.Sprintf(`{"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": %d}`, group)
		}
		for row := range n {
			q := make([]int8, k)
			scales[row] = ref.QuantiseRow(q, v[row*k:(row+1)*k], 0, false)
			for i, c := range q {
				codes[row*k+i] = byte(c)
			}
		}
		out = append(out, entry(name, engine.I8, codes, n, k), number(".weight_scale", scales...))
	case "asym_w4a8_int8":
		engine.Rotate(v, group)
		mark = fmt.Sprintf(`{"format": "asym_w4a8_int8", "group_size": %d, "convrot_groupsize": %d}`, group, group)
		codes, scales, rows := make([]byte, n*k/2), make([]float32, n*k/group), make([]float32, n)
		for row := range n {
			rows[row] = largest(v[row*k:(row+1)*k]) / 127
		}
		for at := 0; at < len(v); at += group {
			scale := largest(v[at:at+group]) / 7
			scales[at/group] = scale / rows[at/k]
			for i := range group {
				code := byte(8 + math.RoundToEven(float64(v[at+i]/scale))) // 1..15: there is no codebook
				codes[(at+i)/2] |= code << (4 * (i % 2))
			}
		}
		out = append(out, entry(name, engine.I8, codes, n, k/2), number(".weight_s_channel", rows...),
			entry(layer+".weight_s_rel", engine.F8E4M3, plain(engine.F8E4M3, scales), n, k/group))
	case "mxfp8":
		scales := make([]byte, tiles(n, k/group))
		for at := 0; at < len(v); at += group {
			e := math.Ceil(math.Log2(float64(largest(v[at:at+group]) / 448)))
			scales[tileOf(at/k, at%k/group, k/group)] = byte(e + 127)
			for i := range group {
				v[at+i] /= float32(math.Exp2(e))
			}
		}
		out = append(out, entry(name, engine.F8E4M3, plain(engine.F8E4M3, v), n, k),
			entry(layer+".weight_scale", engine.U8, scales, len(scales)))
	case "nvfp4":
		whole, codes, scales := largest(v)/6/448, make([]byte, n*k/2), make([]byte, tiles(n, k/group))
		for at := 0; at < len(v); at += group {
			e := plain(engine.F8E4M3, []float32{largest(v[at:at+group]) / 6 / whole})[0]
			scales[tileOf(at/k, at%k/group, k/group)] = e
			for i := range group {
				codes[(at+i)/2] |= nearestFP4(v[at+i]/whole/engine.F32FromF8E4M3(e)) << (4 * (1 - i%2))
			}
		}
		out = append(out, entry(name, engine.U8, codes, n, k/2),
			entry(layer+".weight_scale", engine.F8E4M3, scales, len(scales)), number(".weight_scale_2", whole))
	}
	return append(out, entry(layer+".comfy_quant", engine.U8, []byte(mark), len(mark)))
}

// largest returns the largest magnitude of values, but more than 0.
func largest(v []float32) float32 {
	m := float32(1e-12)
	for _, x := range v {
		m = max(m, x, -x)
	}
	return m
}

// nearestFP4 returns the code of the number of 4 bits (E2M1) that is nearest.
func nearestFP4(x float32) (code byte) {
	if x < 0 {
		return 8 | nearestFP4(-x)
	}
	for _, middle := range []float32{.25, .75, 1.25, 1.75, 2.5, 3.5, 5} {
		if x > middle {
			code++
		}
	}
	return code
}

// tiles returns the bytes of the scales of n rows of so many groups in the order of cuBLAS (tiles of 128 rows and 4
// groups), tileOf the place of one.
func tiles(n, groups int) int { return (n + 127) / 128 * ((groups + 3) / 4) * 512 }

func tileOf(row, group, groups int) int {
	return (row/128*((groups+3)/4)+group/4)*512 + row%32*16 + row%128/32*4 + group%4
}

// TestStreamsOnHostsAndChildren checks that blocks from files of every form, read by ranks on hosts or in processes of
// their own, give for every family the bits of the same plan in one process with whole weights, and exact plans of
// numbers that are not quantized the answer of one rank.
func TestStreamsOnHostsAndChildren(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestHostsEqualOneProcess has the same goroutines")
	}
	one := newEngine(t)
	far, _ := newHosts(t)
	children, err := NewPool(Config{NewOps: testOps, Processes: &processes{dir: t.TempDir()}})
	if err != nil {
		t.Fatal(err)
	}
	defer children.Close()
	formsStream(t, one, []*Pool{far, children}, []string{"hosts", "children"}, 1)
}

// TestStreamsOnDeferredDevices is TestStreamsOnHostsAndChildren on a device that runs calls late.
func TestStreamsOnDeferredDevices(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestLateRanksGiveTheSameBits has the same goroutines")
	}
	formsStream(t, newEngine(t), []*Pool{newDeferredEngine(t, 1)}, []string{"deferred"}, 2)
}

// formsStream runs streamsLikeWhole for every family and form of files, on the pools in turn: each of the plans that
// bring blocks for some. Only one of every so many is run, of each family and of each form.
func formsStream(t *testing.T, one *Pool, pools []*Pool, names []string, every int) {
	t.Helper()
	var all []*request.Request
	for _, f := range families(t) {
		all = append(all, tinyRequest(t, f.name, 2, f.y, f.x, 2))
	}
	for _, name := range networksWithSoundBeside(t)[:1] {
		all = append(all, parityRequest(t, openGolden(t, name), name, 2, 9, 2, 2))
	}
	for i, r := range all {
		name, plans := strings.TrimPrefix(r.Model.Key, "tiny-"), streamPlans()
		if r.Model.Spec.Sound.Width > 0 {
			plans = slices.DeleteFunc(plans, func(text string) bool {
				return strings.Contains(text, "tensor") || strings.Contains(text, "patches")
			})
		}
		set, metadata, err := tiny.Checkpoint(name)
		if err != nil {
			t.Fatal(err)
		}
		for j, form := range fileForms() {
			if testing.Short() && (i+3*j)%len(all) != 0 {
				continue // each form once
			}
			text := planFor(r.Model.Spec, plans[(i+5*j)%len(plans)])
			for k, e := range pools {
				if (i+j)%len(pools) != k && !soak || (i+(every-1)*j)%every != 0 {
					continue
				}
				t.Run(name+"/"+form+"/"+text+"/"+names[k], func(t *testing.T) {
					r := *r
					spec := r.Model.Spec
					r.Model = inForm(t, name, form, set, metadata)
					r.Model.Spec = spec
					streamsLikeWhole(t, one, e, &r, text, form == "F32")
				})
			}
		}
	}
}

// streamsLikeWhole compares a plan that brings blocks, on e, with the plan that has whole weights, in one process. With
// exact, a plan without stages must give the answer of one rank too.
func streamsLikeWhole(t *testing.T, one, e *Pool, r *request.Request, text string, exact bool) {
	t.Helper()
	run := func(e *Pool, text string) *request.Result {
		r := *r
		r.Plan = text
		defer e.Evict(r.Model.Key)
		got, err := e.Sample(context.Background(), &r, nil)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return got
	}
	got, want := run(e, text), run(one, withoutStream(t, text))
	if at := firstDifference(got.Latent.Data, want.Latent.Data); at >= 0 {
		t.Errorf("element %d is %v, with whole weights in one process %v", at, got.Latent.Data[at], want.Latent.Data[at])
	}
	for rank, sent := range got.Stats.Traffic {
		if sent[plan.AxisStream].Calls == 0 {
			t.Errorf("rank %d has read nothing from host memory", rank)
		}
	}
	if !exact || planOf(t, text).Pipe > 1 {
		return
	}
	if rel := relative(got.Latent.Data, run(one, "").Latent.Data); !(rel <= 1e-5) {
		t.Errorf("differs from one rank by %.3g, bound 1e-5", rel)
	}
}

package tests

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"patchbay/engine"
	"patchbay/engine/datafile"
	"patchbay/engine/safetensors"
	"patchbay/models/weights/goldenweights"
	"patchbay/tests/golden"
	"patchbay/tests/harness"
)

// replayed is a case of comfyui.json: what the node sent for a run, with names in place of tensors, and the latent in
// model space at the end of ComfyUI's own loop.
type replayed struct {
	Bound   float64        `json:"bound"`
	X       map[string]any `json:"x"`
	Request map[string]any `json:"request"`
}

// TestComfyUIReplay sends a worker what the node sent while a real ComfyUI was driven, and compares the results with
// what that ComfyUI computed from the same weights. The messages are JSON, so that no code of this program encodes or
// decodes them on this side.
func TestComfyUIReplay(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("long: every graph that a ComfyUI has sent; the tests of node/classes have the same node classes")
	}
	var records struct {
		ComfyUI string              `json:"comfyui"`
		Cases   map[string]replayed `json:"cases"`
	}
	text, err := golden.Read("comfyui.json")
	if err != nil {
		t.Fatal(err)
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber() // seeds have 64 bits
	if err := decoder.Decode(&records); err != nil {
		t.Fatal(err)
	}
	tensors, err := golden.Open("comfyui.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tensors.Close() }()
	models := map[string]bool{}
	for _, c := range records.Cases {
		model := c.Request["model"].(map[string]any)
		models["diffusion_models/"+model["file"].(string)] = true
		nets, _ := model["nets"].([]any)
		for _, n := range nets {
			models["model_patches/"+n.(map[string]any)["file"].(string)] = true
		}
	}
	w := startFrames(t, harness.Build(t), goldenModels(t, models))
	worst, ran := 0.0, 0
	for name, c := range records.Cases {
		if strings.HasPrefix(name, "family_") { // the model sampling is ComfyUI's own for the file
			w.describes(c.Request)
		}
		request := filled(t, tensors, c.Request).(map[string]any)
		request["op"], request["tag"] = "sample", name
		got, fault := w.sample(request)
		if fault != "" {
			t.Errorf("%s: %s", name, fault)
			continue
		}
		want := tensorData(t, filled(t, tensors, c.X))
		rel := farApart(got, want)
		worst, ran = math.Max(worst, rel), ran+1
		if !(rel <= c.Bound) {
			t.Errorf("%s: relative error %.3g, bound %.0e", name, rel, c.Bound)
		}
	}
	if ran < 60 {
		t.Errorf("%d cases ran, at least 60 are recorded", ran)
	}
	t.Logf("%d cases of ComfyUI %s, worst relative error %.2g", ran, records.ComfyUI, worst)
}

// goldenModels writes golden weights into a models folder, each under the given file name.
func goldenModels(t *testing.T, files map[string]bool) string {
	t.Helper()
	dir := t.TempDir()
	for _, folder := range []string{"diffusion_models", "model_patches"} {
		if err := os.MkdirAll(filepath.Join(dir, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for file := range files {
		set, config, err := goldenweights.Set(strings.TrimSuffix(filepath.Base(file), filepath.Ext(file)))
		if err != nil {
			t.Fatal(err)
		}
		var entries []safetensors.Tensor
		for _, n := range set.Names() {
			st, _ := set.Get(n)
			entries = append(entries, safetensors.Tensor{Name: n, DType: st.DType, Shape: st.Shape, Data: datafile.Of(st.Data)})
		}
		f, err := os.Create(filepath.Join(dir, file))
		if err == nil {
			err = safetensors.Write(f, map[string]string{"config": string(config)}, entries)
		}
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// filled replaces the names of tensors in a recorded message with their data.
func filled(t *testing.T, tensors *safetensors.File, v any) any {
	t.Helper()
	switch v := v.(type) {
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = filled(t, tensors, e)
		}
		return out
	case map[string]any:
		if name, ok := v["$tensor"].(string); ok {
			e, ok := tensors.Entry(name)
			if !ok {
				t.Fatalf("no tensor %s", name)
			}
			return map[string]any{"$tensor": map[string]any{
				"dtype": fmt.Sprint(e.DType), "shape": e.Shape,
				"data": base64.StdEncoding.EncodeToString(e.Data.Bytes()),
			}}
		}
		out := map[string]any{}
		for k, e := range v {
			out[k] = filled(t, tensors, e)
		}
		return out
	}
	return v
}

// tensorData returns the numbers of a tensor in JSON.
func tensorData(t *testing.T, v any) []float32 {
	t.Helper()
	text, _ := v.(map[string]any)["$tensor"].(map[string]any)["data"].(string)
	raw, err := base64.StdEncoding.DecodeString(text)
	if err != nil || len(raw) == 0 {
		t.Fatalf("a tensor of %d bytes, %v", len(raw), err)
	}
	out := make([]float32, len(raw)/4)
	engine.Widen(out, raw, engine.F32)
	return out
}

// farApart returns the largest difference over the largest value of want, or +Inf if the lengths differ or a difference
// is NaN.
func farApart(got, want []float32) float64 {
	if len(got) != len(want) {
		return math.Inf(1)
	}
	worst, top := 0.0, 1e-30
	for i, w := range want {
		d := math.Abs(float64(got[i]) - float64(w))
		if math.IsNaN(d) {
			return math.Inf(1)
		}
		worst, top = math.Max(worst, d), math.Max(top, math.Abs(float64(w)))
	}
	return worst / top
}

// frames speaks frames with a worker over its stdin and stdout.
type frames struct {
	t   *testing.T
	in  io.Writer
	out *bufio.Reader
}

// startFrames starts a worker on a models folder, computing in f32.
func startFrames(t *testing.T, program, models string) *frames {
	t.Helper()
	cmd := exec.Command(program, "worker", "--models", models, "--compute", "f32", "--log", "warn")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	return &frames{t, in, bufio.NewReader(out)}
}

// describes asks for the model of a recorded run and checks that its model sampling is what ComfyUI had for the file.
func (w *frames) describes(run map[string]any) {
	w.t.Helper()
	var described any
	w.ask(map[string]any{
		"op": "describe", "tag": "about", "model": map[string]any{"file": run["model"].(map[string]any)["file"]},
	}, func(reply map[string]any) { described = reply["model"].(map[string]any)["sampling"] })
	var want any // with plain numbers
	text, err := json.Marshal(run["sampling"])
	if err == nil {
		err = json.Unmarshal(text, &want)
	}
	if err != nil || want == nil || !reflect.DeepEqual(described, want) {
		w.t.Errorf("%v: describe says the sampling is %v, in ComfyUI it is %v (%v)", run["model"], described, want, err)
	}
}

// sample sends a request and returns x, or the error that was answered instead.
func (w *frames) sample(request map[string]any) (x []float32, fault string) {
	w.t.Helper()
	w.ask(request, func(reply map[string]any) {
		if reply["type"] == "done" {
			x = tensorData(w.t, reply["x"])
		}
		if e, ok := reply["error"]; ok {
			fault = fmt.Sprint(e)
		}
	})
	if x == nil && fault == "" {
		fault = "nothing was answered"
	}
	return x, fault
}

// ask sends a request and calls take with each reply up to the last.
func (w *frames) ask(request map[string]any, take func(map[string]any)) {
	w.t.Helper()
	body, err := json.Marshal(request)
	if err == nil {
		_, err = w.in.Write(slices.Concat(binary.BigEndian.AppendUint32(nil, uint32(len(body))), body))
	}
	for err == nil {
		head := make([]byte, 4)
		if _, err = io.ReadFull(w.out, head); err != nil {
			break
		}
		body := make([]byte, binary.BigEndian.Uint32(head))
		if _, err = io.ReadFull(w.out, body); err != nil {
			break
		}
		var reply map[string]any
		if err = json.Unmarshal(body, &reply); err != nil {
			break
		}
		take(reply)
		if reply["end"] == true {
			return
		}
	}
	w.t.Fatalf("the worker went away: %v", err)
}

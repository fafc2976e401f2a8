package goldenweights

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"patchbay/engine/safetensors"
	"patchbay/models/dit"
	"patchbay/tests/golden"
)

// Case is one recorded evaluation of a network: a batch in which every item has its own entry.
type Case struct {
	Name        string      `json:"-"` // "flux-a/8x12"
	X           []int       `json:"x"` // [n, C, Y, X], frames stacked vertically
	T           int         `json:"-"` // number of frames; 0: x has no frame axis
	Timesteps   []float32   `json:"timesteps"`
	Context     []int       `json:"context"`
	Rows        int         `json:"-"` // so many rows of Context are used; 0: all
	Y           []int       `json:"y"`
	Guidance    []float32   `json:"guidance"`
	T5          []int       `json:"encoder_hidden_states_t5"`
	Lengths     []int       `json:"text_embedding_mask_lengths"`
	T5Lengths   []int       `json:"text_embedding_mask_t5_lengths"`
	MetaSize    [][]float32 `json:"image_meta_size"`
	CSize       any         `json:"c_size"`
	AspectRatio any         `json:"c_ar"`
	References  [][]int     `json:"ref_latents"` // [n, C, Y, X] each, or [n, C, 1, Y, X]; n = 1: of all entries
	Slots       []int       `json:"image_slots"`
	Method      string      `json:"ref_latents_method"`
	Concat      []int       `json:"c_concat"` // [n, C, Y, X]
	Targets     []float32   `json:"target_timesteps"`
	Pooled      []int       `json:"pooled"`
	Sizes       []float32   `json:"height_width_croph_cropw_targeth_targetw"` // of all entries
	Scored      []float32   `json:"height_width_croph_cropw_score"`           // of all entries of a refiner
	Vision      []int       `json:"clip_fea"`
	FrameTimes  []float32   `json:"frame_times"` // the part of the timestep that each frame has
	FrameRate   float64     `json:"frame_rate"`
	Connected   bool        `json:"connected"`
	// Channels are those that were recorded as one input, the latent's and then those of Concat; 0: the latent's alone.
	// In the file it is the number of the latent's.
	Channels int `json:"latent_channels"`
	Sound
}

// recordings are the folders with recorded cases: the families that were recorded first, and later.
var recordings = []string{"", "modern/", "qwen21/", "flux3/", "sdxl/", "refiner/", "wan/", "h3/", "ltx/"}

// Models returns the models that cases were recorded of, in order of their names.
func Models() ([]string, error) {
	of, err := folders()
	return slices.Sorted(maps.Keys(of)), err
}

// modelsIn returns the models that have both weights and cases in a folder.
func modelsIn(folder string) ([]string, error) {
	var cases, made map[string]json.RawMessage
	if err := golden.JSON(folder+"models.json", &cases); err != nil {
		return nil, err
	}
	if err := golden.JSON(folder+"weights.json", &made); err != nil {
		return nil, err
	}
	maps.DeleteFunc(made, func(name string, _ json.RawMessage) bool {
		for c := range cases {
			if strings.HasPrefix(c, name+"/") {
				return false
			}
		}
		return true
	})
	return slices.Sorted(maps.Keys(made)), nil
}

// folders maps every model that cases were recorded of to its folder.
var folders = sync.OnceValues(func() (map[string]string, error) {
	out := map[string]string{}
	for _, folder := range recordings {
		list, err := modelsIn(folder)
		if err != nil {
			return nil, err
		}
		for _, name := range list {
			out[name] = folder
		}
	}
	return out, nil
})

// Folder returns the folder of tests/golden, empty or with a slash at its end, that has the cases of a model. name is
// that of the model or of one of its cases.
func Folder(name string) string {
	model, _, _ := strings.Cut(name, "/")
	of, err := folders()
	if err != nil {
		panic(err) // a file of this repository is broken
	}
	return of[model]
}

// CaseOf decodes a recorded case.
func CaseOf(name string, text []byte) (Case, error) {
	c := Case{Name: name}
	if err := json.Unmarshal(text, &c); err != nil {
		return c, fmt.Errorf("golden case %s: %w", name, err)
	}
	if len(c.X) == 5 {
		c.T, c.X = c.X[2], []int{c.X[0], c.X[1], c.X[2] * c.X[3], c.X[4]}
	}
	if len(c.X) == 4 && c.X[1] == 2*latentOfPictures+1 {
		c.Channels = latentOfPictures
	}
	if n := c.Channels; n > 0 {
		c.Channels, c.X[1] = c.X[1], n
	}
	return c, nil
}

// latentOfPictures is the number of latent channels of models for inpainting that read a mask and a second latent too.
const latentOfPictures = 4

// Cases returns the recorded cases of a model ("flux-a") in a fixed order.
func Cases(model string) ([]Case, error) {
	raw := map[string]json.RawMessage{}
	if err := golden.JSON(Folder(model)+"models.json", &raw); err != nil {
		return nil, err
	}
	var out []Case
	for name, text := range raw {
		if !strings.HasPrefix(name, model+"/") {
			continue
		}
		c, err := CaseOf(name, text)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("golden: no case of model %q", model)
	}
	slices.SortFunc(out, func(a, b Case) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// N returns the number of entries.
func (c Case) N() int { return c.X[0] }

// Size returns the pixels of the latent of an entry plus the rows of its text, a measure of how long a case takes.
func (c Case) Size() int {
	rows := c.X[2] * c.X[3]
	for _, text := range [][]int{c.Context, c.T5} {
		if len(text) > 1 {
			rows += text[1]
		}
	}
	return rows
}

// Latent returns the input latents [n, C, Y, X].
func (c Case) Latent() []float32 {
	latent, _ := c.inputs()
	return latent
}

// inputs returns the latents, and what was recorded as their further channels.
func (c Case) inputs() (latent, more []float32) {
	wide := max(c.Channels, c.X[1])
	item, all := product(c.X[1:]), wide*c.X[2]*c.X[3]
	input := "/x"
	if c.Sound.Sound != nil || c.FrameRate > 0 {
		input = "/video"
	}
	x := golden.Input(c.Name+input, c.N()*all)
	for i := range c.N() {
		latent, more = append(latent, x[i*all:][:item]...), append(more, x[i*all+item:(i+1)*all]...)
	}
	return latent, more
}

// Entries returns the conditioning of every item.
func (c Case) Entries() []dit.Entry {
	n := c.N()
	out := make([]dit.Entry, n)
	_, more := c.inputs()
	for i := range out {
		if size := len(more) / n; size > 0 {
			out[i].Concat = dit.Reference{Y: c.X[2], X: c.X[3], Data: more[i*size : (i+1)*size]}
		}
		if c.Vision != nil {
			out[i].Vision = item(c.Name+"/clip_fea", c.Vision, i)
		}
		out[i].Frames, out[i].FrameRate, out[i].Connected = c.FrameTimes, c.FrameRate, c.Connected
		out[i].Context = item(c.Name+"/context", c.Context, i)
		if e := &out[i].Context; c.Rows > 0 {
			e.Rows, e.Data = c.Rows, e.Data[:c.Rows*e.Cols]
		}
		for k, r := range c.References {
			y, x := r[len(r)-2], r[len(r)-1]
			all := golden.Input(fmt.Sprintf("%s/ref%d", c.Name, k), product(r))
			size, at := product(r[1:]), i%r[0]
			out[i].References = append(out[i].References, dit.Reference{Y: y, X: x, Data: all[at*size : (at+1)*size]})
		}
		out[i].Method, out[i].Slots = c.Method, c.Slots
		c.Sound.with(&out[i])
		if c.Concat != nil {
			size := product(c.Concat[1:])
			all := golden.Input(c.Name+"/concat", product(c.Concat))
			out[i].Concat = dit.Reference{Y: c.X[2], X: c.X[3], Data: all[i*size : (i+1)*size]}
		}
		if c.Pooled != nil {
			out[i].Pooled = item(c.Name+"/pooled", []int{c.Pooled[0], 1, c.Pooled[1]}, i).Data
			out[i].Size = append(slices.Clip(c.Sizes), c.Scored...)
		}
		if c.Y != nil {
			out[i].Pooled = item(c.Name+"/y", []int{c.Y[0], 1, c.Y[1]}, i).Data
		}
		if c.Targets != nil {
			out[i].Schedule = []float32{c.Timesteps[i], c.Targets[i]}
		}
		if c.Guidance != nil {
			out[i].Guidance = &c.Guidance[i]
		}
		if c.T5 != nil {
			out[i].Context2 = item(c.Name+"/encoder_hidden_states_t5", c.T5, i)
			out[i].ContextLen, out[i].Context2Len = c.Lengths[i], c.T5Lengths[i]
			out[i].Size = c.MetaSize[i]
		}
		if size, ok := numbers(c.CSize); ok {
			ratio, _ := numbers(c.AspectRatio)
			out[i].Size = append(size, ratio...)
		}
	}
	return out
}

// numbers reads a JSON value of the form [[a, b]]. It reports false for other values, such as remarks.
func numbers(v any) ([]float32, bool) {
	rows, ok := v.([]any)
	if !ok {
		return nil, false
	}
	var out []float32
	for _, x := range rows[0].([]any) {
		out = append(out, float32(x.(float64)))
	}
	return out, true
}

// item returns item i of an input tensor [n, L, C].
func item(name string, shape []int, i int) dit.Array {
	size := shape[1] * shape[2]
	return dit.Array{Rows: shape[1], Cols: shape[2], Data: golden.Input(name, shape[0]*size)[i*size : (i+1)*size]}
}

func product(shape []int) int {
	n := 1
	for _, s := range shape {
		n *= s
	}
	return n
}

// Results are the files of recorded results.
type Results struct{ files []*safetensors.File }

// OpenResults opens the recorded results of all cases. The caller must close them.
func OpenResults() (Results, error) {
	var out Results
	for _, folder := range recordings {
		f, err := golden.Open(folder + "models.safetensors")
		if err != nil {
			_ = out.Close()
			return Results{}, err
		}
		out.files = append(out.files, f)
	}
	return out, nil
}

func (f Results) Close() (err error) {
	for _, file := range f.files {
		err = errors.Join(err, file.Close())
	}
	return err
}

// Get returns the values and the shape of a recorded tensor.
func (f Results) Get(name string) ([]float32, []int, error) {
	for _, file := range f.files {
		if e, ok := file.Entry(name); ok {
			v, err := e.F32()
			return v, e.Shape, err
		}
	}
	return nil, nil, fmt.Errorf("golden: no tensor %q", name)
}

// States returns the recorded block outputs of a case: block name ("double_blocks.0.1") -> values [1, L, E]. It leaves
// out recorded positions.
func (f Results) States(c Case) map[string][]float32 {
	out := map[string][]float32{}
	for _, file := range f.files {
		for _, name := range file.Names() {
			if part, ok := strings.CutPrefix(name, c.Name+"#"); ok && part != "position_ids" {
				if v, _, err := f.Get(name); err == nil {
					out[part] = v
				}
			}
		}
	}
	return out
}

// Noise returns n seeded values of unit variance, for inputs that nothing was recorded for.
func Noise(name string, n int) []float32 { return golden.Input(name, n) }

// Package lora reads low-rank adapters (LoRA, arXiv:2106.09685) from the file formats that trainers write: kohya,
// diffusers, PEFT, the original names of the model (BFL), OneTrainer, SimpleTuner, and XLabs' processors.
//
// keys.go builds the table that maps module names in files to rows of a model's weights, from the name tables of each
// family (diffusion.go) and of the text encoders (text.go). Match (this file) pairs the tensors of a file, looks up
// their modules and checks every shape; Gather fetches the data. Package weights cuts the result into the pieces that a
// model holds.
//
// Facts that have caused bugs elsewhere: the factor is alpha/rank, and without alpha it is 1, not 1/rank; ranks differ
// within one file; files with separate q, k and v add to row ranges of one fused matrix here; diffusers stores (scale,
// shift) of the last modulation where the original has (shift, scale). Accepted names are those of ComfyUI 0.33.0
// (comfy/lora.py, comfy/lora_convert.py) and a few more.
package lora

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"patchbay/engine"
	"patchbay/models/weights"
)

// Addition is one module of a file that adds to a weight: rows [First, First+Rows) of the weight Name get Scale * rows
// [UpRow, UpRow+Rows) of Up * Down.
type Addition struct {
	Part     string // "" for the diffusion model, else the kind of the text encoder ("clip_l", "t5" ...)
	Name     string // of the weight in the model's own naming, without ".weight"
	First    int
	Rows     int
	Up, Down string // names of the tensors in the file
	UpRow    int
	Scale    float32 // alpha / rank, 1 without alpha
}

// Change is a tensor of a file that changes a stored one directly (weights.Change): elements [First, First+Rows) of the
// bias or norm Name get rows [Row, Row+Rows) of Tensor added; with Set the norm Name is replaced by Tensor; with
// Columns the matrix Name is widened to that many columns, and Tensor is empty. Only diffusion models have changes.
type Change struct {
	Name             string
	Tensor           string
	First, Rows, Row int
	Set              bool
	Columns          int
}

// Matched is what a file contains for a model and its text encoders.
type Matched struct {
	Additions []Addition // in the order of the file's names
	Changes   []Change   // norms first, then in the order of the file's names
	Unused    []string   // sorted tensor names whose module is in neither model nor encoders
}

// ForPart returns the additions to one part.
func ForPart(part string, all []Addition) []Addition {
	return slices.DeleteFunc(slices.Clone(all), func(a Addition) bool { return a.Part != part })
}

// module holds the names of a module's tensors in a file, by role.
type module [roles]string

// Match pairs the tensors of set and looks up what they add to. Only shapes and alphas are read. It returns an error
// for a file without any match (with its first names and examples of expected ones), for incomplete pairs, for shapes
// that do not fit, and, by name, for anything other than low-rank pairs and the supported changes of biases and norms
// (DoRA, LoHa, LoKr, full differences ...).
func Match(set *weights.Set, keys *Keys) (*Matched, error) {
	modules, unused, err := pairs(set, keys)
	if err != nil {
		return nil, err
	}
	out := &Matched{}
	if err := out.vectors(set, keys); err != nil {
		return nil, err
	}
	if err := out.norms(set, keys, unused); err != nil {
		return nil, err
	}
	users := map[target]string{}
	for _, name := range slices.Sorted(maps.Keys(modules)) {
		m := modules[name]
		t, ok := keys.targets[name]
		if !ok {
			out.Unused = append(out.Unused, slices.DeleteFunc(m[:], func(tensor string) bool { return tensor == "" })...)
			continue
		}
		if first, twice := users[t]; twice {
			return nil, fmt.Errorf("lora: modules %s and %s both stand for %s; a file may have one of them", first, name, t.name)
		}
		users[t] = name
		scale, columns, err := m.check(set, name, t)
		if err != nil {
			return nil, err
		}
		if columns > 0 {
			out.Changes = append(out.Changes, Change{Name: t.name + ".weight", Columns: columns})
		}
		more := t.additions(m, scale)
		for _, a := range more {
			if m[roleBias] != "" {
				out.Changes = append(out.Changes,
					Change{Name: a.Name + ".bias", Tensor: m[roleBias], First: a.First, Rows: a.Rows, Row: a.UpRow})
			}
		}
		out.Additions = append(out.Additions, more...)
	}
	slices.Sort(out.Unused)
	if len(out.Additions) == 0 {
		return nil, keys.nothing(set)
	}
	return out, nil
}

// pairs groups the tensors of a file by module, without those that are added to vectors. Names that belong to no known
// format are returned as unused.
func pairs(set *weights.Set, keys *Keys) (map[string]module, []string, error) {
	modules := map[string]module{}
	var unused, refused []string
	for _, name := range set.Names() {
		if _, ok := keys.vectors[name]; ok {
			continue
		}
		if why := unsupported(name); why != "" {
			refused = append(refused, fmt.Sprintf("%s (%s)", name, why))
			continue
		}
		stem, r := split(name)
		if r == roleNone {
			unused = append(unused, name)
			continue
		}
		m := modules[stem]
		if m[r] != "" {
			return nil, nil, fmt.Errorf("lora: %s and %s are the same tensor of one module", m[r], name)
		}
		m[r] = name
		modules[stem] = m
	}
	if len(refused) > 0 {
		return nil, nil, fmt.Errorf("lora: %d tensors are neither of low-rank pairs nor changes of biases and norms beside "+
			"them, which are all that is supported: %s", len(refused), firstOf(refused))
	}
	for stem, m := range modules {
		if m[roleUp] == "" && m[roleDown] == "" && m[roleBias] == "" { // an alpha without its pair
			unused = append(unused, m[roleAlpha])
			delete(modules, stem)
		}
	}
	return modules, unused, nil
}

// vectors looks for what is added to the weights and biases of norms.
func (m *Matched) vectors(set *weights.Set, keys *Keys) error {
	for _, name := range set.Names() {
		t, ok := keys.vectors[name]
		if !ok {
			continue
		}
		if err := vector(set, name, t); err != nil {
			return err
		}
		m.Changes = append(m.Changes, Change{Name: t.name, Tensor: name, Rows: t.rows})
	}
	return nil
}

// norms looks for replacements of whole norms among the tensors outside pairs; the others become Unused.
func (m *Matched) norms(set *weights.Set, keys *Keys, tensors []string) error {
	users := map[target]string{}
	for _, name := range tensors {
		t, ok := keys.norms[name]
		switch {
		case !ok && (strings.HasSuffix(name, ".set_weight") || strings.HasSuffix(name, "_norm.scale")):
			return fmt.Errorf("lora: %s replaces a tensor, which is supported for norms of this model only", name)
		case !ok:
			m.Unused = append(m.Unused, name)
			continue
		}
		if first, twice := users[t]; twice {
			return fmt.Errorf("lora: %s and %s both stand for %s; a file may have one of them", first, name, t.name)
		}
		users[t] = name
		if err := vector(set, name, t); err != nil {
			return err
		}
		m.Changes = append(m.Changes, Change{Name: t.name, Tensor: name, Rows: t.rows, Set: true})
	}
	return nil
}

// vector checks a tensor that is added to a bias or replaces a norm.
func vector(set *weights.Set, name string, t target) error {
	if s, _ := set.Get(name); !fractional(s) || len(s.Shape) != 1 || s.Shape[0] != t.rows {
		return fmt.Errorf("lora: %s: got shape %v of %s, want [%d] of f32, bf16 or f16 for %s", name, s.Shape, s.DType,
			t.rows, t.name)
	}
	return nil
}

// fractional reports whether a tensor has an element type allowed in low-rank pairs.
func fractional(s weights.Stored) bool {
	return s.DType != engine.I32 && s.DType != engine.I64 && s.DType != engine.U8 && s.DType <= engine.F64
}

// check compares the shapes of a pair with the rows that it adds to. It returns alpha/rank, and the number of columns
// that the matrix is widened to, or 0.
func (m module) check(set *weights.Set, name string, t target) (scale float32, columns int, err error) {
	switch {
	case m[roleUp] == "" && m[roleDown] == "":
		return 0, 0, fmt.Errorf("lora: %s changes a bias without a pair beside it, which is not supported", m[roleBias])
	case m[roleUp] == "":
		return 0, 0, fmt.Errorf("lora: %s has no partner (the up or B matrix of %s)", m[roleDown], name)
	case m[roleDown] == "":
		return 0, 0, fmt.Errorf("lora: %s has no partner (the down or A matrix of %s)", m[roleUp], name)
	case m[roleBias] != "" && !t.biased:
		return 0, 0, fmt.Errorf("lora: %s changes a bias of %s, of which only those of diffusion models can be changed",
			m[roleBias], t.name)
	case m[roleBias] != "":
		if err := vector(set, m[roleBias], t); err != nil {
			return 0, 0, err
		}
	}
	up, _ := set.Get(m[roleUp])
	down, _ := set.Get(m[roleDown])
	for _, s := range []struct {
		name string
		weights.Stored
	}{{m[roleUp], up}, {m[roleDown], down}} {
		if !fractional(s.Stored) {
			return 0, 0, fmt.Errorf("lora: %s has element type %s, want f32, bf16, f16 or fp8", s.name, s.DType)
		}
		if len(s.Shape) < 2 || s.Len() == 0 {
			return 0, 0, fmt.Errorf("lora: %s: got shape %v, want up [%d, R] and down [R, %d] to add to %s", s.name, s.Shape,
				t.rows, t.columns, t.name)
		}
	}
	r := down.Shape[0]
	if k := down.Len() / r; t.widens && k > t.columns && len(down.Shape) == 2 {
		t.columns, columns = k, k
	}
	if down.Len() != r*t.columns {
		return 0, 0, fmt.Errorf("lora: %s: got shape %v, want [%d, %d] to add to %s", m[roleDown], down.Shape, r, t.columns,
			t.name)
	}
	if up.Shape[0] != t.rows || up.Len() != t.rows*r {
		return 0, 0, fmt.Errorf("lora: %s: got shape %v, want [%d, %d] to add to %s", m[roleUp], up.Shape, t.rows, r, t.name)
	}
	if m[roleAlpha] == "" {
		return 1, columns, nil
	}
	a, _ := set.Get(m[roleAlpha])
	if a.Len() != 1 || a.DType > engine.F64 {
		return 0, 0, fmt.Errorf("lora: %s: got shape %v of %s, want one number", m[roleAlpha], a.Shape, a.DType)
	}
	alpha := float64(a.F32()[0])
	if math.IsNaN(alpha) || math.IsInf(alpha, 0) {
		return 0, 0, fmt.Errorf("lora: %s is %v, want a finite number", m[roleAlpha], alpha)
	}
	return float32(alpha / float64(r)), columns, nil
}

// additions returns what a matched pair adds: one row range, or two if the file stores the halves in reverse order.
func (t target) additions(m module, scale float32) []Addition {
	a := Addition{Part: t.part, Name: t.name, First: t.first, Rows: t.rows, Up: m[roleUp], Down: m[roleDown], Scale: scale}
	if !t.swapped {
		return []Addition{a}
	}
	half := t.rows / 2
	first, second := a, a
	first.Rows, first.UpRow = half, half
	second.First, second.Rows = t.first+half, half
	return []Addition{first, second}
}

// Gather fetches the data of additions from the file that they were matched with, all factors multiplied by strength.
// The data is read from set later. It returns an error if the file no longer has the matched tensors.
func Gather(set *weights.Set, additions []Addition, strength float32) ([]weights.LowRank, error) {
	out := make([]weights.LowRank, 0, len(additions))
	for _, a := range additions {
		up, okUp := set.Get(a.Up)
		down, okDown := set.Get(a.Down)
		if !okUp || !okDown || len(up.Shape) < 2 || up.Shape[0] < a.UpRow+a.Rows {
			return nil, fmt.Errorf("lora: the file no longer has %s and %s as they were when it was looked at", a.Up, a.Down)
		}
		rank := up.Len() / max(up.Shape[0], 1)
		up, err := up.Rows(a.UpRow, a.Rows)
		if err != nil {
			return nil, fmt.Errorf("lora: %s: %w", a.Up, err)
		}
		up.Shape = []int{a.Rows, rank}
		out = append(out, weights.LowRank{Name: a.Name, First: a.First, Down: down, Up: up, Scale: a.Scale * strength})
	}
	return out, nil
}

// GatherChanges fetches the data of changes from the file that they were matched with; Scale is strength, which only
// applies to what is added. It returns an error if the file no longer has the matched tensors.
func GatherChanges(set *weights.Set, changes []Change, strength float32) ([]weights.Change, error) {
	out := make([]weights.Change, 0, len(changes))
	for _, c := range changes {
		w := weights.Change{Name: c.Name, First: c.First, Scale: strength, Set: c.Set, Columns: c.Columns}
		if c.Tensor != "" {
			t, ok := set.Get(c.Tensor)
			if !ok || t.Len() < c.Row+c.Rows {
				return nil, fmt.Errorf("lora: the file no longer has %s as it was when it was looked at", c.Tensor)
			}
			w.Values = t.F32()[c.Row : c.Row+c.Rows]
		}
		out = append(out, w)
	}
	return out, nil
}

// firstOf joins the first few names for an error message.
func firstOf(names []string) string {
	const shown = 6
	s := strings.Join(names[:min(len(names), shown)], ", ")
	if len(names) > shown {
		s += fmt.Sprintf(" and %d more", len(names)-shown)
	}
	return s
}

package lora

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"patchbay/models/weights"
)

// Keys maps the module names that files use to rows of the weights of one model and its text encoders. It never changes
// once made.
type Keys struct {
	targets  map[string]target
	norms    map[string]target // of whole small tensors
	examples []string          // of tensor names that would match
	what     []string          // whose names they are
}

// target is what a module name stands for: rows [first, first+rows) of a stored matrix with so many columns.
type target struct {
	part        string
	name        string // without ".weight"
	first, rows int
	columns     int
	swapped     bool // the file stores the second half first
	widens      bool // files may have more columns
	biased      bool // there is a bias, of a diffusion model
}

// Join makes one table of several. Names are distinct by their prefixes; where two tables share one, the first counts.
func Join(all ...*Keys) *Keys {
	out := &Keys{targets: map[string]target{}, norms: map[string]target{}}
	for _, a := range slices.Backward(all) {
		maps.Copy(out.targets, a.targets)
		maps.Copy(out.norms, a.norms)
	}
	for _, k := range all {
		out.examples, out.what = append(out.examples, k.examples...), append(out.what, k.what...)
	}
	return out
}

// nothing is the error for a file of which no module is known.
func (k *Keys) nothing(set *weights.Set) error {
	names := set.Names()
	if len(names) == 0 {
		return fmt.Errorf("lora: the file has no tensors")
	}
	return fmt.Errorf("lora: nothing in the file fits %s: it begins with %s; expected are names such as %s",
		strings.Join(k.what, ", "), firstOf(names), strings.Join(k.examples, ", "))
}

// builder collects the names of one model.
type builder struct {
	part     string
	matrices map[string][2]int // own name without ".weight" -> rows, columns
	biases   map[string]bool   // own names without ".bias" of biases that may change
	input    string            // of the matrix that may get more columns
	keys     *Keys
}

func newBuilder(part, what string) *builder {
	return &builder{
		part: part, matrices: map[string][2]int{}, biases: map[string]bool{},
		keys: &Keys{targets: map[string]target{}, norms: map[string]target{}, what: []string{what}},
	}
}

// add takes a stored tensor if it is a matrix.
func (b *builder) add(name string, shape []int) {
	own, ok := strings.CutSuffix(name, ".weight")
	if !ok || len(shape) < 2 {
		return
	}
	columns := 1
	for _, d := range shape[1:] {
		columns *= d
	}
	b.matrices[own] = [2]int{shape[0], columns}
}

// spell adds the spellings of a module name: with each prefix, and with each of flat before the name with underscores
// for dots.
func (b *builder) spell(module string, t target, prefixes, flat []string) {
	for _, p := range prefixes {
		b.keys.targets[p+module] = t
	}
	for _, p := range flat {
		b.keys.targets[p+strings.ReplaceAll(module, ".", "_")] = t
	}
}

// target is so many rows of a matrix from first on.
func (b *builder) target(name string, first, rows, columns int) target {
	return target{
		part: b.part, name: name, first: first, rows: rows, columns: columns, widens: name == b.input, biased: b.biases[name],
	}
}

// norm takes a stored vector that files may replace: by its own name ("norm.key_norm.scale"), or without the last word
// and with the ending ".set_weight".
func (b *builder) norm(name string, shape []int, prefixes []string) {
	module, ok := strings.CutSuffix(name, "_norm.scale")
	if !ok || len(shape) != 1 {
		return
	}
	t := target{part: b.part, name: name, rows: shape[0]}
	for _, p := range prefixes {
		b.keys.norms[p+name], b.keys.norms[p+module+"_norm.set_weight"] = t, t
	}
}

// own adds the model's own names.
func (b *builder) own(prefixes, flat []string) {
	for name, size := range b.matrices {
		b.spell(name, b.target(name, 0, size[0], size[1]), prefixes, flat)
	}
}

// aliases adds other names. Those of weights that this model lacks are left out.
func (b *builder) aliases(list []weights.Alias, prefixes, flat []string) {
	for _, a := range list {
		for _, i := range b.numbers(a.Own) {
			name := strings.Replace(a.Own, "*", i, 1)
			size, ok := b.matrices[name]
			if !ok {
				continue
			}
			lo, hi := 0, size[0]
			if a.Rows != nil {
				lo, hi = a.Rows(size[0], size[1])
			}
			if lo < hi && hi <= size[0] {
				t := b.target(name, lo, hi-lo, size[1])
				t.swapped = a.Swapped && size[0] == 2*size[1]
				b.spell(strings.Replace(a.File, "*", i, 1), t, prefixes, flat)
			}
		}
	}
}

// numbers lists what the star of a name can stand for, block numbers; for a name without one, an empty number.
func (b *builder) numbers(pattern string) []string {
	head, _, starred := strings.Cut(pattern, "*")
	if !starred {
		return []string{""}
	}
	found := map[string]bool{}
	for name := range b.matrices {
		if rest, ok := strings.CutPrefix(name, head); ok {
			number, _, _ := strings.Cut(rest, ".")
			found[number] = true
		}
	}
	return slices.Collect(maps.Keys(found))
}

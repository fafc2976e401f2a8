package lora

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"patchbay/models/weights"
)

// Keys maps the module names that files use to rows of the weights of one model and its text encoders. It is immutable.
type Keys struct {
	targets  map[string]target
	norms    map[string]target // of whole small tensors
	vectors  map[string]target // of small tensors that files add to
	examples []string          // tensor names that would match, for error messages
	what     []string          // descriptions of the models whose names these are
}

// target is what a module name refers to: rows [first, first+rows) of a stored matrix of the given columns.
type target struct {
	part        string
	name        string // without ".weight"
	first, rows int
	columns     int
	swapped     bool // the file stores the second half first
	widens      bool // files may give the matrix more columns
	biased      bool // the module has a bias, in a diffusion model
}

// Join merges several tables. Prefixes keep their names distinct; if a name occurs in two tables, the first one wins.
func Join(all ...*Keys) *Keys {
	out := &Keys{targets: map[string]target{}, norms: map[string]target{}, vectors: map[string]target{}}
	for _, a := range slices.Backward(all) {
		maps.Copy(out.targets, a.targets)
		maps.Copy(out.norms, a.norms)
		maps.Copy(out.vectors, a.vectors)
	}
	for _, k := range all {
		out.examples, out.what = append(out.examples, k.examples...), append(out.what, k.what...)
	}
	return out
}

// nothing returns the error for a file without any known module.
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
	input    string            // the matrix that may get more columns
	keys     *Keys
}

func newBuilder(part, what string) *builder {
	return &builder{
		part: part, matrices: map[string][2]int{}, biases: map[string]bool{},
		keys: &Keys{
			targets: map[string]target{}, norms: map[string]target{}, vectors: map[string]target{}, what: []string{what},
		},
	}
}

// add records a stored tensor if it is a matrix.
func (b *builder) add(name string, shape []int) {
	matrix, ok := strings.CutSuffix(name, ".weight")
	if !ok || len(shape) < 2 {
		return
	}
	columns := 1
	for _, d := range shape[1:] {
		columns *= d
	}
	b.matrices[matrix] = [2]int{shape[0], columns}
}

// spell adds the spellings of a module name: with each of prefixes, and with each of flat and the dots of the name
// replaced by underscores.
func (b *builder) spell(module string, t target, prefixes, flat []string) {
	for _, p := range prefixes {
		b.keys.targets[p+module] = t
	}
	for _, p := range flat {
		b.keys.targets[p+strings.ReplaceAll(module, ".", "_")] = t
	}
}

// target returns rows rows of a matrix, starting at first.
func (b *builder) target(name string, first, rows, columns int) target {
	return target{
		part: b.part, name: name, first: first, rows: rows, columns: columns, widens: name == b.input, biased: b.biases[name],
	}
}

// norm records a stored vector that files may replace: under its own name ("norm.key_norm.scale"), or with
// ".set_weight" in place of ".scale".
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

// vector records a stored vector of a norm that files may add to: the name of its module with ".diff" for the weight,
// and with ".diff_b" for the bias.
func (b *builder) vector(name string, shape []int, prefixes []string) {
	for end, spelt := range map[string]string{".weight": ".diff", ".bias": ".diff_b"} {
		module, ok := strings.CutSuffix(name, end)
		if _, matrix := b.matrices[module]; !ok || matrix || len(shape) != 1 {
			continue
		}
		for _, p := range prefixes {
			b.keys.vectors[p+module+spelt] = target{part: b.part, name: name, rows: shape[0]}
		}
	}
}

// own adds the model's own names.
func (b *builder) own(prefixes, flat []string) {
	for name, size := range b.matrices {
		b.spell(name, b.target(name, 0, size[0], size[1]), prefixes, flat)
	}
}

// aliases adds other names. It skips those of weights that this model lacks.
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

// numbers lists the block numbers that the star in a name may stand for, or an empty string for a name without a star.
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

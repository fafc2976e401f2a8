package weights

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"patchbay/engine"
	"patchbay/models/dit"
)

// Options says how a struct is filled.
type Options struct {
	Model string           // what is loaded, for errors
	Dims  map[string]int   // sizes named in shape, rows and split tags, e.g. {"E": 3072}
	Units map[string]int   // granularity of a split dimension, e.g. {"E": D} keeps heads whole; absent: 1
	Perms map[string][]int // row orders named in perm tags
	// Held reports whether element i of a list (full name, e.g. "double_blocks") should be loaded; nil: all. Names and
	// shapes of the others are checked too, but no data of them is read.
	Held func(list string, i int) bool
	// Uses reports whether weights with a use should be loaded; nil: all.
	Uses func(u dit.Use) bool
	// Block returns the block number of element i of a list; nil: everything is outside of blocks. It matters for
	// Parts > 1 and Streams.
	Block func(list string, i int) int
	// Rank and Ranks select the slice of a tensor group; Ranks 0 or 1: whole weights.
	Rank, Ranks int
	// Part and Parts select the part of every block's bytes that is loaded (dit.Held); Parts 0 or 1: all.
	Part, Parts int
	// Streams reports whether a block stays in host memory, from where it is read before each use; nil: none does.
	Streams func(block int) bool
	// Shelf says that matrices may be taken from the shelf of ops (dit.Shelf) instead of being read. Only one Load of a
	// model may say so: names must mean the same.
	Shelf  bool
	Ignore []string // prefixes of names in a file that may stay unused
	Spare  bool     // other names that the model does not know stay unused too: they are in Loaded.Unused, no error
}

// Declared is one tensor that a struct declares.
type Declared struct {
	Name  string
	Shape []int
	Use   dit.Use
	Block int     // block number; -1: outside of blocks
	Add   float32 // added to every element of a vector on loading
	// Split is what a tensor group divides of it, by groups of rows or columns.
	Split []dit.Split
}

// Params returns the number of elements.
func (d Declared) Params() int64 {
	n := int64(1)
	for _, s := range d.Shape {
		n *= int64(s)
	}
	return n
}

// item is one field to fill.
type item struct {
	tag
	field reflect.Value
	full  string // name with all prefixes, without .weight
	alt   string
	held  bool
	block int   // block number; -1: outside of blocks
	want  []int // stored shape; nil: any
}

type planner struct {
	opt    Options
	items  []item
	unused []string
}

func isWeight(f reflect.Value) bool { return f.Type() == reflect.TypeFor[*engine.Weight]() }

func isTensor(f reflect.Value) bool { return f.Type() == reflect.TypeFor[engine.Tensor]() }

// plan walks dst, a pointer to a tagged struct. Its errors are mistakes in tags.
func plan(dst any, opt Options) (*planner, error) {
	v := reflect.ValueOf(dst)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return nil, fmt.Errorf("load %s: destination is a %T, not a pointer to a struct", opt.Model, dst)
	}
	p := &planner{opt: opt}
	if err := p.walk(v.Elem(), "", spot{held: true, block: -1, dims: opt.Dims}); err != nil {
		return nil, fmt.Errorf("load %s: %w", opt.Model, err)
	}
	return p, nil
}

// Sized is a struct with weight tags that has sizes of its own, for itself and everything in it. They take the place of
// those of Options.Dims in shape tags.
type Sized interface{ Sizes() map[string]int }

// spot describes where in the model a struct is.
type spot struct {
	held  bool
	block int // -1: outside of blocks
	use   dit.Use
	dims  dims
}

func (p *planner) walk(v reflect.Value, prefix string, at spot) error {
	if s, ok := v.Addr().Interface().(Sized); ok {
		if at.dims = maps.Clone(at.dims); at.dims == nil {
			at.dims = dims{}
		}
		maps.Copy(at.dims, s.Sizes())
	}
	for i := range v.NumField() {
		t, ok, err := parseTag(v.Type().Field(i))
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		if err := p.field(v.Field(i), t, prefix, at); err != nil {
			return fmt.Errorf("field %s.%s: %w", v.Type().Name(), v.Type().Field(i).Name, err)
		}
	}
	return nil
}

func (p *planner) field(f reflect.Value, t tag, prefix string, at spot) error {
	full := prefix + t.name
	at.use = cmp.Or(t.use, at.use)
	if p.opt.Uses != nil && !p.opt.Uses(at.use) {
		at.held = false
	}
	if !f.CanSet() {
		return fmt.Errorf("must be exported to be filled")
	}
	switch {
	case isWeight(f) || isTensor(f):
		want, err := at.dims.shape(t.shape)
		if err != nil {
			return err
		}
		if t.shape == nil {
			want = nil
		}
		it := item{tag: t, field: f, full: full, held: at.held, block: at.block, want: want}
		it.use = at.use
		if t.alt != "" {
			it.alt = prefix + t.alt
		}
		p.items = append(p.items, it)
		return nil
	case f.Kind() == reflect.Pointer && f.Type().Elem().Kind() == reflect.Struct:
		if f.IsNil() {
			return nil
		}
		return p.walk(f.Elem(), dotted(full), at)
	case f.Kind() == reflect.Struct:
		return p.walk(f, dotted(full), at)
	case f.Kind() == reflect.Slice:
		for i := range f.Len() {
			e := f.Index(i)
			if e.Kind() == reflect.Pointer {
				e = e.Elem()
			}
			in := at
			in.held = at.held && (p.opt.Held == nil || p.opt.Held(full, i))
			if p.opt.Block != nil {
				in.block = p.opt.Block(full, i)
			}
			if err := p.walk(e, fmt.Sprintf("%s.%d.", full, i), in); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("type %s cannot be filled (allowed: *engine.Weight, engine.Tensor, structs, slices of structs)",
		f.Type())
}

// dotted turns a name into a prefix. One that ends in an underscore already is a prefix: "img_" and "attn.qkv" make
// "img_attn.qkv".
func dotted(name string) string {
	if name == "" || strings.HasSuffix(name, ".") || strings.HasSuffix(name, "_") {
		return name
	}
	return name + "."
}

// Declare lists the tensors that dst declares, in field order. Every field needs a shape tag. dst is not changed.
func Declare(dst any, opt Options) ([]Declared, error) {
	p, err := plan(dst, opt)
	if err != nil {
		return nil, err
	}
	var out []Declared
	seen, counted := map[string]int{}, map[[2]string]bool{} // names, and with them the rows that a field reads
	add := func(name string, shape []int, it item, split []dit.Split) {
		at, ok := seen[name] // by a field that shares a fused matrix
		if !ok {
			at, seen[name] = len(out), len(out)
			out = append(out, Declared{Name: name, Shape: shape, Use: it.use, Block: it.block, Add: it.add})
		}
		if part := [2]string{name, it.rows}; !counted[part] {
			counted[part], out[at].Split = true, append(out[at].Split, split...)
		}
	}
	for _, it := range p.items {
		if it.want == nil {
			return nil, fmt.Errorf("declare %s: %s has no shape tag", opt.Model, it.full)
		}
		if isTensor(it.field) {
			add(it.full, it.want, it, nil)
			continue
		}
		matrix, bias, err := it.splits(opt)
		if err != nil {
			return nil, fmt.Errorf("declare %s: %s: %w", opt.Model, it.full, err)
		}
		add(it.full+".weight", it.want, it, matrix)
		if !it.noBias {
			add(it.full+".bias", it.want[:1], it, bias)
		}
	}
	return out, nil
}

// splits returns what a tensor group divides of a matrix, and of its bias: with rows their elements, with columns not.
func (it *item) splits(opt Options) (matrix, bias []dit.Split, err error) {
	side, expr, ok := strings.Cut(it.split, " ")
	if !ok {
		return nil, nil, nil
	}
	groups, err := dims(opt.Dims).groups(expr, opt.Units)
	across := int64(1) // elements of a row, or of a column
	for i, n := range it.want {
		if side == "rows" && i > 0 || side == "cols" && i != 1 {
			across *= int64(n)
		}
	}
	for _, g := range groups {
		matrix = append(matrix, dit.Split{Units: g.units, Params: int64(g.unit) * across})
		if side == "rows" {
			bias = append(bias, dit.Split{Units: g.units, Params: int64(g.unit)})
		}
	}
	return matrix, bias, err
}

// check compares the plan with the set and reports everything missing, unexpected or of the wrong shape at once.
func (p *planner) check(set *Set) error {
	if set.refused != nil {
		return fmt.Errorf("load %s: %w", p.opt.Model, set.refused)
	}
	bad := &MismatchError{Model: p.opt.Model}
	used := map[string]bool{}
	for i := range p.items {
		p.items[i].resolve(set, used, bad)
	}
	for _, name := range set.Names() {
		ignored := slices.ContainsFunc(p.opt.Ignore, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
		if !used[name] && !ignored {
			bad.Unexpected = append(bad.Unexpected, name)
		}
	}
	if p.opt.Spare {
		p.unused, bad.Unexpected = bad.Unexpected, nil
	}
	slices.Sort(bad.Missing)
	bad.Missing = slices.Compact(bad.Missing)
	if bad.empty() {
		return nil
	}
	return bad
}

// resolve decides which stored names the item uses and checks their shapes.
func (it *item) resolve(set *Set, used map[string]bool, bad *MismatchError) {
	suffix := ""
	if isWeight(it.field) {
		suffix = ".weight"
	}
	if !set.Has(it.full+suffix) && it.alt != "" && set.Has(it.alt+suffix) {
		it.full = it.alt
	}
	name := it.full + suffix
	if !set.Has(name) {
		if !it.optional {
			bad.Missing = append(bad.Missing, name)
			if suffix != "" && !it.noBias && !it.optBias && !set.Has(it.full+".bias") {
				bad.Missing = append(bad.Missing, it.full+".bias")
			}
		}
		return
	}
	expect := func(name string, want []int) {
		used[name] = true
		s, _ := set.Get(name)
		s = s.within(want)
		if want != nil && !slices.Equal(s.Shape, want) {
			bad.Shapes = append(bad.Shapes, fmt.Sprintf("%s: stored %v, expected %v", name, s.Shape, want))
		}
		if !s.usable() {
			bad.Shapes = append(bad.Shapes, fmt.Sprintf("%s: element type of this tensor is not supported", name))
		}
	}
	expect(name, it.want)
	if suffix == "" || it.noBias {
		return
	}
	switch bias := it.full + ".bias"; {
	case set.Has(bias):
		rows := set.Dim(name, 0)
		if it.want != nil {
			rows = it.want[0]
		}
		expect(bias, []int{rows})
	case !it.optBias:
		bad.Missing = append(bad.Missing, bias)
	}
}

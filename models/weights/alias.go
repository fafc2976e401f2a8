package weights

import (
	"fmt"
	"strings"
)

// Names says how files call the tensors of a model otherwise than the original checkpoint does.
type Names struct {
	Diffusers []Alias  // of diffusers; parts of one matrix from top to bottom
	Original  []Alias  // more names that go with the original ones
	Tables    []string // stored tensors of two dimensions that nothing is multiplied with
	Same      bool     // diffusers calls the tensors as the original checkpoint does
	// Input is the matrix that reads the tokens of a latent, without ".weight": adapters may give it more columns, for a
	// picture beside the latent (dit.Spec.Concat). Empty: they may not.
	Input string
}

// Alias says that files call a weight, or rows of it, by another name. A star stands for the number of a block. Names
// are those of modules, without ".weight"; tensors that are called otherwise in the two layouts have whole names.
type Alias struct {
	File, Own string
	Rows      func(n, k int) (lo, hi int) // of the stored matrix [n, k]; nil: all
	// Swapped: (scale, shift) in files, (shift, scale) in the model; only where the matrix is these two, [2k, k].
	Swapped bool
}

// Part is the rows of piece i of a matrix of so many equal pieces.
func Part(i, of int) func(n, k int) (int, int) {
	return func(n, _ int) (int, int) { return i * n / of, (i + 1) * n / of }
}

// Square is the rows of piece i of pieces with as many rows as the matrix has columns.
func Square(i int) func(n, k int) (int, int) {
	return func(_, k int) (int, int) { return i * k, (i + 1) * k }
}

// Behind is the rows from square i on.
func Behind(i int) func(n, k int) (int, int) {
	return func(n, k int) (int, int) { return i * k, n }
}

// QKV are the rows of queries, keys and values that files keep apart: thirds of own, under names with one beginning.
func QKV(file string, names [3]string, own string) []Alias {
	var out []Alias
	for i, n := range names {
		out = append(out, Alias{File: file + n, Own: own, Rows: Part(i, 3)})
	}
	return out
}

// Joint are the names that diffusers has for the tensors that relatives of FLUX.1 have in common: of blocks of two
// streams, norms of blocks of one, and the layers in front of and behind them.
func Joint() []Alias {
	const d, s, double, single = "transformer_blocks.*.", "single_transformer_blocks.*.", "double_blocks.*.",
		"single_blocks.*."
	list := []Alias{
		{File: s + "attn.norm_q.weight", Own: single + "norm.query_norm.scale"},
		{File: s + "attn.norm_k.weight", Own: single + "norm.key_norm.scale"},
		{File: "x_embedder", Own: "img_in"},
		{File: "context_embedder", Own: "txt_in"},
		{File: "proj_out", Own: "final_layer.linear"},
		{File: "norm_out.linear", Own: "final_layer.adaLN_modulation.1", Swapped: true},
	}
	for _, side := range []struct {
		own, mlp, out, query, key string
		qkv                       [3]string
	}{
		{"img", "ff", "to_out.0", "norm_q", "norm_k", [3]string{"to_q", "to_k", "to_v"}},
		{
			"txt", "ff_context", "to_add_out", "norm_added_q", "norm_added_k",
			[3]string{"add_q_proj", "add_k_proj", "add_v_proj"},
		},
	} {
		own := double + side.own
		list = append(append(list, QKV(d+"attn.", side.qkv, own+"_attn.qkv")...),
			Alias{File: d + "attn." + side.out, Own: own + "_attn.proj"},
			Alias{File: d + "attn." + side.query + ".weight", Own: own + "_attn.norm.query_norm.scale"},
			Alias{File: d + "attn." + side.key + ".weight", Own: own + "_attn.norm.key_norm.scale"},
			Alias{File: d + side.mlp + ".net.0.proj", Own: own + "_mlp.0"},
			Alias{File: d + side.mlp + ".net.2", Own: own + "_mlp.2"})
	}
	return list
}

// MLP2 are the two layers of an embedder: file names "<file>.linear_1" and "<file>.linear_2" for own names.
func MLP2(file, first, second string) []Alias {
	return []Alias{{File: file + ".linear_1", Own: first}, {File: file + ".linear_2", Own: second}}
}

// original returns the original name of a stored tensor and the number of its alias, -1: it has none.
func original(name string, list []Alias) (own string, alias int) {
	dot := strings.LastIndexByte(name, '.')
	for i, a := range list {
		for _, cut := range []int{len(name), dot} { // the whole name, the module's
			if cut < 0 {
				continue
			}
			head, tail, starred := strings.Cut(a.File, "*")
			rest, ok := strings.CutPrefix(name[:cut], head)
			number, fits := strings.CutSuffix(rest, tail)
			if ok && fits && (starred && !strings.Contains(number, ".") && number != "" || !starred && number == "") {
				return strings.Replace(a.Own, "*", number, 1) + name[cut:], i
			}
		}
	}
	return name, -1
}

// Renamed returns a set in the names that list translates to. Nothing is read: parts become row ranges of fused
// matrices, halves that files store the other way round change places. Names that list does not have stay. Errors:
// parts of one matrix that are missing, there twice, or do not fit.
func Renamed(set *Set, list []Alias) (*Set, error) {
	of, place := map[string]int{}, make([]int, len(list)) // how many parts a matrix has, which one an alias is
	for i, a := range list {
		if a.Rows != nil {
			place[i] = of[a.Own]
			of[a.Own]++
		}
	}
	parts, aliases := map[string][]string{}, map[string]int{}
	for _, name := range set.Names() {
		as, i := original(name, list)
		n, at := 1, 0
		if i >= 0 && list[i].Rows != nil {
			n, at = of[list[i].Own], place[i]
		}
		if parts[as] == nil {
			parts[as] = make([]string, n)
		}
		if len(parts[as]) != n || parts[as][at] != "" {
			return nil, fmt.Errorf("tensors %q and %q are the same part of %s", name, strings.Join(parts[as], " "), as)
		}
		parts[as][at], aliases[as] = name, i
	}
	out := make(map[string]Stored, len(parts))
	for as, names := range parts {
		t, err := fuse(set, names)
		if i := aliases[as]; err == nil && i >= 0 && list[i].Swapped {
			t, err = halvesSwapped(t)
		}
		if err != nil {
			return nil, fmt.Errorf("%s of %s: %w", as, strings.Join(names, ", "), err)
		}
		out[as] = t
	}
	return FromMap(out), nil
}

// fuse joins the parts of one matrix or bias.
func fuse(set *Set, names []string) (Stored, error) {
	pieces := make([]Stored, len(names))
	for i, name := range names {
		t, ok := set.Get(name)
		if !ok {
			return t, fmt.Errorf("part %d of %d is missing", i+1, len(names))
		}
		pieces[i] = t
	}
	if len(pieces) == 1 {
		return pieces[0], nil
	}
	return Concat(pieces...)
}

// halvesSwapped puts the lower half of the rows above the upper half.
func halvesSwapped(t Stored) (Stored, error) {
	if len(t.Shape) == 0 || t.Shape[0]%2 != 0 {
		return t, fmt.Errorf("shape %v has no two halves", t.Shape)
	}
	half := t.Shape[0] / 2
	upper, _ := t.Rows(0, half) // it has these rows
	lower, _ := t.Rows(half, half)
	return Concat(lower, upper)
}

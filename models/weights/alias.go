package weights

import (
	"fmt"
	"strings"
)

// Names says how files name the tensors of a model differently from the original checkpoint.
type Names struct {
	Diffusers []Alias  // names in diffusers; parts of one matrix in row order
	Original  []Alias  // other names found in files with original names
	Tables    []string // two-dimensional tensors that are tables, not matrices of a product
	Flat      []string // prefixes of names with underscores for dots, besides those that all families have
	Same      bool     // diffusers uses the names of the original checkpoint
	// Input names the matrix that reads the tokens of a latent, without ".weight": adapters may give it more columns,
	// for a picture beside the latent (dit.Spec.Concat). Empty: they may not.
	Input string
}

// Alias is another name that files use for a weight, or for rows of it. A star stands for the number of a block. Names
// are those of modules, without ".weight"; tensors whose last part differs between the two layouts have full names.
type Alias struct {
	File, Own string
	Rows      func(n, k int) (lo, hi int) // range of rows of the stored matrix [n, k]; nil: all
	// Swapped: files store (scale, shift), the model has (shift, scale). The matrix must be just these, [2k, k].
	Swapped bool
}

// Part returns an Alias.Rows for piece i of a matrix that consists of that many equal pieces.
func Part(i, of int) func(n, k int) (int, int) {
	return func(n, _ int) (int, int) { return i * n / of, (i + 1) * n / of }
}

// Square returns an Alias.Rows for piece i of a matrix whose pieces have as many rows as it has columns.
func Square(i int) func(n, k int) (int, int) {
	return func(_, k int) (int, int) { return i * k, (i + 1) * k }
}

// Behind returns an Alias.Rows for everything from Square(i) on.
func Behind(i int) func(n, k int) (int, int) {
	return func(n, k int) (int, int) { return i * k, n }
}

// QKV returns the aliases of queries, keys and values that files store separately, as file + names: the thirds of
// target.
func QKV(file string, names [3]string, target string) []Alias {
	var out []Alias
	for i, n := range names {
		out = append(out, Alias{File: file + n, Own: target, Rows: Part(i, 3)})
	}
	return out
}

// Joint returns the diffusers names of the tensors that relatives of FLUX.1 have in common: double- and single-stream
// blocks, and the layers before and after the blocks. FLUX.1 and FLUX.2 spell some modules differently, and adapters of
// either use both (ComfyUI comfy/utils.py, flux_to_diffusers). In linear1 of single blocks, the rows of the first MLP
// layer follow those of queries, keys and values.
func Joint() []Alias {
	const d, s, double, single = "transformer_blocks.*.", "single_transformer_blocks.*.", "double_blocks.*.",
		"single_blocks.*."
	list := []Alias{
		{File: s + "attn.norm_q.weight", Own: single + "norm.query_norm.scale"},
		{File: s + "attn.norm_k.weight", Own: single + "norm.key_norm.scale"},
		{File: s + "attn.to_q", Own: single + "linear1", Rows: Square(0)},
		{File: s + "attn.to_k", Own: single + "linear1", Rows: Square(1)},
		{File: s + "attn.to_v", Own: single + "linear1", Rows: Square(2)},
		{File: s + "proj_mlp", Own: single + "linear1", Rows: Behind(3)},
		{File: s + "attn.to_qkv_mlp_proj", Own: single + "linear1"},
		{File: s + "proj_out", Own: single + "linear2"},
		{File: s + "attn.to_out", Own: single + "linear2"},
		{File: "x_embedder", Own: "img_in"},
		{File: "context_embedder", Own: "txt_in"},
		{File: "proj_out", Own: "final_layer.linear"},
		{File: "norm_out.linear", Own: "final_layer.adaLN_modulation.1", Swapped: true},
	}
	for _, side := range []struct {
		stream, mlp, out, query, key string
		qkv                          [3]string
	}{
		{"img", "ff", "to_out.0", "norm_q", "norm_k", [3]string{"to_q", "to_k", "to_v"}},
		{
			"txt", "ff_context", "to_add_out", "norm_added_q", "norm_added_k",
			[3]string{"add_q_proj", "add_k_proj", "add_v_proj"},
		},
	} {
		target := double + side.stream
		list = append(append(list, QKV(d+"attn.", side.qkv, target+"_attn.qkv")...),
			Alias{File: d + "attn." + side.out, Own: target + "_attn.proj"},
			Alias{File: d + "attn." + side.query + ".weight", Own: target + "_attn.norm.query_norm.scale"},
			Alias{File: d + "attn." + side.key + ".weight", Own: target + "_attn.norm.key_norm.scale"},
			Alias{File: d + side.mlp + ".net.0.proj", Own: target + "_mlp.0"},
			Alias{File: d + side.mlp + ".net.2", Own: target + "_mlp.2"},
			Alias{File: d + side.mlp + ".linear_in", Own: target + "_mlp.0"},
			Alias{File: d + side.mlp + ".linear_out", Own: target + "_mlp.2"})
	}
	return list
}

// MLP2 returns the aliases of an embedder's two layers: "<file>.linear_1" is first, "<file>.linear_2" is second.
func MLP2(file, first, second string) []Alias {
	return []Alias{{File: file + ".linear_1", Own: first}, {File: file + ".linear_2", Own: second}}
}

// original returns the original name of a stored tensor and the index of its alias, -1 if it has none.
func original(name string, list []Alias) (target string, alias int) {
	dot := strings.LastIndexByte(name, '.')
	for i, a := range list {
		for _, cut := range []int{len(name), dot} { // the full name, then the module's
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

// Renamed returns set with the names that list translates to; names that are not in list stay. No data is read: parts
// become row ranges of fused matrices, and swapped halves are put in order. It returns an error if parts of a matrix
// are missing, occur twice or do not fit.
func Renamed(set *Set, list []Alias) (*Set, error) {
	of, place := map[string]int{}, make([]int, len(list)) // number of parts of a matrix; index of an alias's part
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

// fuse concatenates the parts of one matrix or bias.
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

// halvesSwapped moves the lower half of the rows above the upper half.
func halvesSwapped(t Stored) (Stored, error) {
	if len(t.Shape) == 0 || t.Shape[0]%2 != 0 {
		return t, fmt.Errorf("shape %v has no two halves", t.Shape)
	}
	half := t.Shape[0] / 2
	upper, _ := t.Rows(0, half) // the range is valid
	lower, _ := t.Rows(half, half)
	return Concat(lower, upper)
}

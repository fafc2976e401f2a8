package layers

import (
	"slices"
	"strings"
	"testing"

	"patchbay/models/dit"
)

func TestCheckEntriesNamesTheField(t *testing.T) {
	spec := &dit.Spec{Family: "test", ContextDim: 4, PooledDim: 3, Context2Dim: 2}
	good := func() dit.Entry {
		return dit.Entry{
			Context:  dit.Array{Rows: 2, Cols: 4, Data: make([]float32, 8)},
			Context2: dit.Array{Rows: 1, Cols: 2, Data: make([]float32, 2)},
			Pooled:   make([]float32, 5),
		}
	}
	if err := CheckEntries(spec, []dit.Entry{good(), good()}); err != nil {
		t.Fatalf("good entries: %v", err)
	}
	if err := CheckEntries(spec, nil); err == nil {
		t.Error("no entries were accepted")
	}
	for want, spoil := range map[string]func(*dit.Entry){
		"entry 1: context has 5 columns, want 4":        func(e *dit.Entry) { e.Context.Cols = 5 },
		"entry 1: context has 3 tokens":                 func(e *dit.Entry) { e.Context.Rows = 3 },
		"entry 1: context has 7 values, want 8":         func(e *dit.Entry) { e.Context.Data = make([]float32, 7) },
		"entry 1: length of context is 3, want 0..2":    func(e *dit.Entry) { e.ContextLen = 3 },
		"entry 1: second context has 3 columns, want 2": func(e *dit.Entry) { e.Context2.Cols = 3 },
		"entry 1: pooled vector has 2 values, want 3":   func(e *dit.Entry) { e.Pooled = make([]float32, 2) },
	} {
		bad := good()
		spoil(&bad)
		if err := CheckEntries(spec, []dit.Entry{good(), bad}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want one that says %q", err, want)
		}
	}
}

func TestKeyLen(t *testing.T) {
	entries := []dit.Entry{{Context: dit.Array{Rows: 5}}, {Context: dit.Array{Rows: 5}, ContextLen: 5}}
	if got := KeyLen(entries); got != nil {
		t.Errorf("all tokens valid: got %v, want nil", got)
	}
	entries[1].ContextLen = 2
	if got := KeyLen(entries); !slices.Equal(got, []int{5, 2}) {
		t.Errorf("got %v, want [5 2]", got)
	}
}

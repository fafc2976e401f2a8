package text

import (
	"math"
	"slices"
	"testing"

	"patchbay/engine"
	"patchbay/engine/ref"
	"patchbay/models/tokenizer"
	"patchbay/models/weights/goldenweights"
)

// TestNearby runs a small Gemma 3 whose layers see 2 tokens. Each of five such layers carries a changed token one row
// further, the sixth, which sees all, to the last row. Queries and keys of these layers turn by angles of their own.
func TestNearby(t *testing.T) {
	set, _, err := goldenweights.Set("gemma3-a")
	if err != nil {
		t.Fatal(err)
	}
	net, err := OpenPart(ref.New(), "gemma3_12b", set, nil, 0, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer net.Close()
	m := *net.(*LM)
	m.Config.nearby.window = 2
	run := func(first int) Encoding {
		var chunk []tokenizer.Token
		for _, id := range []int{2, first, 40, 50, 60, 70, 80, 90, 100, 110} {
			chunk = append(chunk, tokenizer.Token{ID: id, Weight: 1})
		}
		got, err := m.Encode(Env{Ops: ref.New()}, [][]tokenizer.Token{chunk}, Form{All: true})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	a, b := run(20), run(30)
	reached := func(state int) (rows []int) {
		for r := range a.Context.Rows {
			at := r*a.Context.Cols + state*m.Config.Width
			if !slices.Equal(a.Context.Data[at:][:m.Config.Width], b.Context.Data[at:][:m.Config.Width]) {
				rows = append(rows, r)
			}
		}
		return rows
	}
	for state, last := range []int{1, 2, 3, 4, 5, 6, 9} {
		var want []int
		for r := 1; r <= last; r++ {
			want = append(want, r)
		}
		if got := reached(state); !slices.Equal(got, want) {
			t.Errorf("behind %d layers, rows %v differ, want %v", state, got, want)
		}
	}
	arena := func() *engine.Arena {
		const bytes = 1 << 20
		buf, err := ref.New().Alloc(bytes)
		if err != nil {
			t.Fatal(err)
		}
		return engine.NewArena("test", buf, bytes)
	}()
	n := m.Config.nearby.room(arena, 1, 256)
	m.Config.near(ref.New(), n, [][3]int{{1000, 1000, 1000}})
	got := make([]float32, 128)
	if err := ref.New().Download(got, n.rope.Cos).Wait(); err != nil {
		t.Fatal(err)
	}
	cos, _ := m.Config.rotation([][3]int{{1000, 1000, 1000}}, m.Config.Theta, m.Config.nearby.stretch)
	for k := range 128 {
		near := math.Cos(1000 * math.Pow(1e4, -float64(k)/128))
		far := math.Cos(1000 / 8. * math.Pow(1e6, -float64(k)/128))
		if !(math.Abs(float64(got[k])-near) <= 1e-4 && math.Abs(float64(cos[k])-far) <= 1e-4) {
			t.Fatalf("pair %d: %v and %v, want %v and %v", k, got[k], cos[k], near, far)
		}
	}
}

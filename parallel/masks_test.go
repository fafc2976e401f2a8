package parallel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"patchbay/fault"
	"patchbay/parallel/request"
	"patchbay/tests/race"
)

// TestEveryItemHasItsMasks checks that masks of entries and of the noise may differ between the items of a batch:
// every picture equals that of its item alone. A mask with fewer items than the batch is repeated.
func TestEveryItemHasItsMasks(t *testing.T) {
	if race.Enabled {
		t.Skip("under the race detector: TestExactPlansEqualOneRank has the same goroutines")
	}
	e := newEngine(t)
	const items, y, x = 3, 8, 10
	r := parityRequest(t, openGolden(t, "flux-c"), "flux-c", items, y, x, 2)
	entry := &r.Branches[0].Entries[1]
	mask := func(masks int, at func(item, y, x int) bool) request.Latent {
		m := request.NewLatent(masks, 1, y, x)
		for i := range m.Data {
			if m.Data[i] = 0.25; at(i/(y*x), i/x%y, i%x) {
				m.Data[i] = 1
			}
		}
		return m
	}
	r.Mask = mask(items, func(i, y, x int) bool { return (x+3*i)%10 < 5 })
	for _, masks := range []int{items, 2} {
		entry.Mask = mask(masks, func(i, y, x int) bool { return (y+4*i)%8 < 3 })
		var want []float32
		for i := range items {
			one := *r
			one.Latent, one.Noise, one.Mask = item(r.Latent, i), item(r.Noise, i), item(r.Mask, i)
			one.Branches = []request.Branch{
				{Name: "positive", Entries: []request.Entry{r.Branches[0].Entries[0], *entry}},
				r.Branches[1],
			}
			one.Branches[0].Entries[1].Mask = item(entry.Mask, i%masks)
			res, err := e.Sample(context.Background(), &one, nil)
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, res.Latent.Data...)
		}
		for _, plan := range []string{"", "data=2", "cfg=3,ulysses=2", "pipe=2,patches=3,warmup=99"} {
			r.Plan = plan
			got, err := e.Sample(context.Background(), r, nil)
			if err != nil {
				t.Fatal(err)
			}
			for i := range items {
				n := len(want) / items
				if rel := relative(got.Latent.Data[i*n:(i+1)*n], want[i*n:(i+1)*n]); rel > 1e-5 {
					t.Errorf("plan %q, %d masks: item %d differs by %.3g from its run alone, bound 1e-5", plan, masks,
						i, rel)
				}
			}
		}
		if rel := relative(want[:len(want)/items], want[len(want)/items:2*len(want)/items]); rel < 1e-2 {
			t.Fatalf("items differ by %.3g only", rel)
		}
	}
}

// item returns one item of a latent or mask.
func item(l request.Latent, i int) request.Latent {
	n := l.Len() / l.B
	if i >= l.B {
		panic(fmt.Sprintf("item %d of %d", i, l.B))
	}
	return request.Latent{B: 1, C: l.C, Y: l.Y, X: l.X, Data: l.Data[i*n : (i+1)*n]}
}

// TestAreaOutsideTheLatent checks that an area outside the latent is an error only when an entry with it is evaluated,
// as in ComfyUI, where entries of the other branch get it too.
func TestAreaOutsideTheLatent(t *testing.T) {
	e := newEngine(t)
	g := openGolden(t, anyModel)
	sample := func(branch int, area request.Area, from float32) ([]float32, error) {
		r := parityRequest(t, g, anyModel, 1, 8, 10, 3)
		r.Sigmas = r.Sigmas[:2] // one evaluation
		far := r.Branches[branch].Entries[0]
		far.Area, far.Ranged, far.SigmaStart = area, true, from*r.Sigmas[0]
		if area != (request.Area{}) {
			r.Branches[branch].Entries = append(r.Branches[branch].Entries, far)
		}
		res, err := e.Sample(context.Background(), r, nil)
		if err != nil {
			return nil, err
		}
		return res.Latent.Data, nil
	}
	want, err := sample(0, request.Area{}, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, far := range []request.Area{{H: 8, W: 8, X: 10}, {H: 8, W: 8, Y: 8}, {H: 8, W: 8, Y: 2, X: 99}} {
		for branch, field := range []string{"positive", "negative"} {
			if got, err := sample(branch, far, 0.9); err != nil || !slices.Equal(got, want) {
				t.Errorf("area %+v of an inactive entry, %s: error %v, or not the picture without it", far, field, err)
			}
			_, err := sample(branch, far, 1)
			var refused *fault.Error
			if !errors.As(err, &refused) || refused.Code != fault.BadInput ||
				!strings.Contains(refused.Text, "outside the latent of 8 x 10") {
				t.Errorf("area %+v of an active entry, %s: %v, want a refusal", far, field, err)
			}
		}
	}
}
